"""Bodies are large and the concurrency is at its maximum, so that the sidecar exceeds its memory limit."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_runtime.contract.messages.result import ResultState
from gpu_runtime.process.shared_settings import NatsSettings, StreamSettings
from localcluster.nats_server import NatsAccount
from tests.integration.framework.framework_process import running_framework, temporary_socket_dir
from tests.integration.worker_sidecar.sidecar_harness import (
    SidecarHarness,
    sidecar_harness,
    sidecar_process,
    sidecar_settings,
)

MEMORY_LIMIT_BYTES = 384 * 1024 * 1024
"""The memory limit of the sidecar in the settings of the controller manager."""
BODY_BYTES = 500 * 1024
INVOCATIONS = 400

FRAMEWORK = f"""
import asyncio
from gpu_runtime.framework import handler, serve

@handler
async def run(request):
    await asyncio.sleep(0.5)
    return "x" * {BODY_BYTES}

serve()
"""


@pytest.fixture
def socket_dir() -> Iterator[Path]:
    with temporary_socket_dir() as directory:
        yield directory


@pytest.mark.parametrize("request_bytes", [BODY_BYTES, 10], ids=["large requests", "small requests"])
async def test_large_bodies_at_full_concurrency_stay_within_the_memory_of_the_sidecar(
    nats_account: NatsAccount, socket_dir: Path, tmp_path: Path, request_bytes: int
) -> None:
    nats = NatsSettings(urls=(nats_account.url,), streams=StreamSettings())
    with running_framework(FRAMEWORK, socket_dir, GPU_RUNTIME_CONCURRENCY="1024") as framework:
        settings = sidecar_settings(nats_account, framework.socket, nats=nats, concurrency=1024, heartbeat_seconds=5)
        async with sidecar_harness(settings) as harness:
            for number in range(INVOCATIONS):
                await harness.publish_dispatch("x" * request_bytes, f"inv-{number}")
            with sidecar_process(settings, tmp_path) as process:
                await wait_for_results(harness)
                peak_bytes = peak_memory(process.pid)
    assert {result.state for result in harness.results.values()} == {ResultState.SUCCEEDED}
    assert peak_bytes < MEMORY_LIMIT_BYTES


async def wait_for_results(harness: SidecarHarness) -> None:
    async with asyncio.timeout(300):
        while len(harness.results) < INVOCATIONS:  # noqa: ASYNC110 - the harness counts results in a callback
            await asyncio.sleep(0.2)


def peak_memory(pid: int) -> int:
    """Return the highest memory use of a process so far."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel reports no peak memory")
