"""Parallel lists over large waiting messages do not fill the memory of a replica."""

import asyncio
import tracemalloc
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.message_codec import encode
from gpu_runtime.contract.messages.streams import StreamTopology
from gpu_runtime.jetstream.stream_messages import StoredMessage
from gpu_runtime.runtime_api.invocations import listing
from gpu_runtime.runtime_api.invocations.requests import InvocationState, ListInvocations
from gpu_runtime.runtime_api.invocations.service import InvocationService

PARALLEL_LISTS = 15
WAITING_MESSAGES = 200
MAX_BYTES = 40 * 1024 * 1024
NOW = datetime(2030, 1, 1, tzinfo=UTC)


async def next_large_message(connection: Any, stream: str, subject: str, sequence: int = 1) -> StoredMessage | None:
    """Read the stream INVOKE, which has waiting invocations with the largest payload."""
    if sequence > WAITING_MESSAGES or not stream.endswith("INVOKE"):
        return None
    body = b"x" * (512 * 1024)
    invocation = Invocation(
        invocation_id=f"i{sequence}", serverless_request_id="f", body=body, enqueued_at=NOW, timeout_seconds=60
    )
    message = StoredMessage(subject, sequence, encode(invocation), {}, NOW)
    await asyncio.sleep(0)
    return message


class NoRecords:
    async def read(self, _invocation_id: str) -> None:
        return None


async def test_parallel_lists_of_large_waiting_invocations_use_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "next_message", next_large_message)
    unused: Any = None
    service = InvocationService(
        nats_client=SimpleNamespace(connection=None, topology=StreamTopology()),  # type: ignore[arg-type]
        functions=SimpleNamespace(find_id=lambda _request_id: "fid"),  # type: ignore[arg-type]
        enqueuer=SimpleNamespace(records=NoRecords()),  # type: ignore[arg-type]
        results=unused,
        limits=unused,
        max_sync_wait_seconds=1,
        clock=unused,
        metrics=unused,
    )
    query = ListInvocations(serverless_request_id="f", state=InvocationState.QUEUED)
    tracemalloc.start()
    try:
        pages = await asyncio.gather(*(service.list(query) for _ in range(PARALLEL_LISTS)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MAX_BYTES
    for views, continuation in pages:
        assert views[0].invocation_id == "i1"
        assert continuation
