"""Parallel lists over large waiting messages or dead letters do not fill the memory of a replica."""

import asyncio
import tracemalloc
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_runtime.contract.messages.dead_letter import DeadLetter
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.message_codec import encode
from gpu_runtime.contract.messages.streams import StreamTopology
from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.jetstream.stream_messages import StoredMessage
from gpu_runtime.runtime_api.dead_letters import service as dead_letters
from gpu_runtime.runtime_api.dead_letters.requests import ListDeadLetters
from gpu_runtime.runtime_api.invocations import listing
from gpu_runtime.runtime_api.invocations.requests import InvocationState, ListInvocations
from gpu_runtime.runtime_api.invocations.service import InvocationService
from tests.ticket_keys import TICKETS

PARALLEL_LISTS = 15
WAITING_MESSAGES = 200
SUBJECTS = StreamTopology().subjects
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


async def next_large_letter(connection: Any, _stream: str, _subject: str, sequence: int = 1) -> StoredMessage | None:
    """Read the stream of dead letters, which has dead letters of the largest messages."""
    if sequence > WAITING_MESSAGES:
        return None
    letter = DeadLetter(
        subject="runtime.serverless.dispatch.fid",
        data=b"x" * (700 * 1024),
        failure_class=FailureClass.INTERNAL,
        reason="crashed",
        delivery_count=1,
        published_at=NOW,
        dead_lettered_at=NOW,
    )
    await asyncio.sleep(0)
    return StoredMessage(SUBJECTS.dead_letter(Stream.DISPATCH, "fid"), sequence, encode(letter), {}, NOW)


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


async def test_parallel_lists_of_large_dead_letters_use_little_memory_and_end_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dead_letters, "next_message", next_large_letter)
    unused: Any = None
    nats_client: Any = SimpleNamespace(connection=None, topology=StreamTopology(), tickets=TICKETS)
    service = dead_letters.DeadLetterService(
        nats_client, unused, unused, asyncio.Semaphore(listing.MAX_CONCURRENT_MESSAGE_READS)
    )
    tracemalloc.start()
    try:
        pages = await asyncio.gather(*(service.list(ListDeadLetters(limit=100)) for _ in range(PARALLEL_LISTS)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MAX_BYTES
    for views, continuation in pages:
        assert 10 < len(views) < 30
        assert continuation
    views, continuation = pages[0]
    following, _ = await service.list(ListDeadLetters(limit=1, after=continuation or ""))
    assert int(following[0].id) == int(views[-1].id) + 1
