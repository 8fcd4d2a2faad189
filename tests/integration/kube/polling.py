"""Waiting for a condition, never for a time."""

import asyncio
from collections.abc import Callable

from gpu_runtime.kube.meta import ApiResource, KubeObject

CONFIG_MAPS = ApiResource("", "v1", "ConfigMap", "configmaps", KubeObject)


async def eventually(condition: Callable[[], bool], what: str, timeout: float = 60) -> None:  # noqa: ASYNC109
    try:
        async with asyncio.timeout(timeout):
            while not condition():  # noqa: ASYNC110 - the world outside sends no events
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {timeout:g} s: {what}") from None
