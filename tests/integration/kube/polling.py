"""Waits for conditions instead of fixed times."""

import asyncio
from collections.abc import Callable

from gpu_runtime.kube.meta import ApiResource, KubeObject

CONFIG_MAPS = ApiResource("", "v1", "ConfigMap", "configmaps", KubeObject)


async def eventually(condition: Callable[[], bool], description: str, timeout: float = 60) -> None:  # noqa: ASYNC109
    try:
        async with asyncio.timeout(timeout):
            while not condition():  # noqa: ASYNC110 - the condition has no event to wait for
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not true within {timeout:g} s: {description}") from None
