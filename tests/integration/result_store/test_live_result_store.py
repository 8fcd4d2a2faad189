"""Every result is stored once. Then its record becomes terminal, and only then the message is acknowledged."""

import asyncio
import signal
import sqlite3
from collections import Counter
from datetime import timedelta

import msgspec
import pytest

from gpu_runtime.contract.errors import Rejected
from gpu_runtime.contract.messages.dead_letter import DeadLetter
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation_record import RecordAtRevision, RecordState, Termination, record_headers
from gpu_runtime.contract.messages.invocation_ticket import TICKET_HEADER, ticket_headers
from gpu_runtime.contract.messages.limits import MAX_PAYLOAD_BYTES
from gpu_runtime.contract.messages.message_codec import decode, encode
from gpu_runtime.contract.messages.result import ResultState
from gpu_runtime.contract.messages.result_query import (
    RESULT_QUERY,
    RESULTS_QUERY,
    GetResultResponse,
    ListResultsResponse,
)
from gpu_runtime.jetstream.api import api_request
from gpu_runtime.jetstream.delivery import AckDelivery, Delivery, DeliveryOutcome, OutgoingMessage
from gpu_runtime.jetstream.stream_specs import ConsumerSpec
from gpu_runtime.process.ticket_key_file import TicketKeyFile
from tests.integration.jetstream.sample_streams import RecordingHandler, running_consumer
from tests.integration.kube.polling import eventually
from tests.integration.result_store.conftest import (
    NEW_RECORD,
    InProcessResultStore,
    ResultStoreHarness,
    ResultStoreProcess,
    result,
    until,
)

RESULT_COUNT = 3000


async def test_record_ends_with_the_state_of_the_first_result(
    store: InProcessResultStore, harness: ResultStoreHarness
) -> None:
    created = await harness.create_record("one")
    store.start()
    await harness.publish_results([result("one", ResultState.FAILED)], created)
    await harness.wait_empty()
    record = await harness.record("one")
    assert record is not None
    assert (record.state, record.result_state, record.request_hash) == (
        RecordState.TERMINAL,
        ResultState.FAILED,
        "hash",
    )

    await harness.publish_results([result("one"), result("one", ResultState.CANCELLED)])
    await harness.wait_empty()
    stored = await harness.get_result("one")
    assert stored is not None
    assert stored.state is ResultState.FAILED
    assert (await harness.record("one")) == record
    assert await store.metric_value("gpu_runtime_results_duplicate_total") == 2


async def test_result_of_a_later_invocation_with_the_same_id_replaces_the_stored_result(
    store: InProcessResultStore, harness: ResultStoreHarness
) -> None:
    """Records expire before results. Then the runtime API accepts the same invocationID for another request."""
    later = msgspec.structs.replace(
        NEW_RECORD, request_hash="other", enqueued_at=NEW_RECORD.enqueued_at + timedelta(days=2)
    )
    store.start()
    first = await harness.create_record("one")
    await harness.publish_results([result("one", body=b"old")], first)
    await harness.wait_empty()
    stored = await harness.records.get("one")
    assert stored is not None
    await harness.records.purge("one", stored.revision)  # as if the record had expired

    second = await harness.create_record("one", later)
    await harness.publish_results([result("one", ResultState.FAILED, b"new")], second)
    await harness.publish_results([result("one", body=b"late")], first)
    await harness.wait_empty()
    found, record = await harness.get_result("one"), await harness.record("one")
    assert found is not None
    assert record is not None
    assert (found.state, found.body) == (ResultState.FAILED, b"new")
    assert (record.state, record.result_state) == (RecordState.TERMINAL, ResultState.FAILED)
    assert [each.body_bytes for each in await harness.list_all()] == [len(b"new")]


async def test_process_exits_if_it_can_no_longer_watch_the_key_file(
    store: InProcessResultStore, harness: ResultStoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TicketKeyFile, "reload_if_changed", lambda _file: 1 / 0)
    store.start()
    with pytest.raises(ExceptionGroup) as raised:
        await store.wait_stopped()
    assert raised.group_contains(ZeroDivisionError)


async def test_record_changed_since_the_headers_is_read_and_finished(
    store: InProcessResultStore, harness: ResultStoreHarness
) -> None:
    """The record was cancelled after the worker read it, or the headers have no record, or the record has expired."""
    changed, no_headers = await harness.create_record("changed"), await harness.create_record("no-headers")
    cancelled = msgspec.structs.replace(changed.record, termination=Termination.CANCELLED)
    revision = await harness.records.update("changed", encode(cancelled), changed.revision)
    assert revision is not None
    store.start()
    await harness.publish_results([result("changed")], changed)
    await harness.publish_results([result("no-headers"), result("expired")])
    await harness.publish_results([result("expired-too")], RecordAtRevision(no_headers.record, 4711))
    await harness.wait_empty()
    for name, termination in (("changed", Termination.CANCELLED), ("no-headers", None)):
        record = await harness.record(name)
        assert record is not None
        assert (record.state, record.termination) == (RecordState.TERMINAL, termination)
    assert await harness.record("expired") is None
    assert await harness.record("expired-too") is None
    assert await harness.get_result("expired-too") is not None


async def test_stored_result_with_open_record_is_finished_by_the_redelivery(
    store: InProcessResultStore, harness: ResultStoreHarness
) -> None:
    """Simulates a crash between the two writes: the result is stored, and the record is reset to its first state."""
    created = await harness.create_record("one")
    store.start()
    await harness.publish_results([result("one", ResultState.EXPIRED)])
    await harness.wait_empty()
    assert await harness.record("one") is not None
    entry = await harness.records.get("one")
    assert entry is not None
    revision = await harness.records.update("one", encode(created.record), entry.revision)
    assert revision is not None
    await harness.publish_results([result("one")], RecordAtRevision(created.record, revision))
    await harness.wait_empty()
    record = await harness.record("one")
    assert record is not None
    assert (record.state, record.result_state) == (RecordState.TERMINAL, ResultState.EXPIRED)


async def test_undecodable_result_is_dead_lettered_and_blocks_no_other(
    store: InProcessResultStore, harness: ResultStoreHarness
) -> None:
    letters: list[DeadLetter] = []

    async def collect(delivery: Delivery) -> DeliveryOutcome:
        letters.append(decode(delivery.data, DeadLetter))
        return AckDelivery()

    store.start()
    subject = harness.topology.subjects.result("thumbs")
    for data in (b"\x00 no result", b"x" * 1_000_000):
        await harness.publisher.publish(OutgoingMessage(subject, data, headers=harness.ticket_headers("bad")))
    await harness.publish_results([result("good")])
    spec = ConsumerSpec(harness.topology.dead_letter_stream.name, "reader")
    async with running_consumer(harness.publisher, RecordingHandler(collect), spec=spec):
        await eventually(lambda: len(letters) == 2, "both messages are dead-lettered")
    await harness.wait_empty()
    assert {each.failure_class for each in letters} == {FailureClass.BAD_MESSAGE}
    assert b"\x00 no result" in [each.data for each in letters]
    assert await harness.get_result("good") is not None


async def test_result_without_a_valid_ticket_is_ignored_and_counted(
    store: InProcessResultStore, harness: ResultStoreHarness
) -> None:
    created = await harness.create_record("victim")
    store.start()
    subject, data = harness.topology.subjects.result("thumbs"), encode(result("victim"))
    forged = harness.ticket_headers("victim")[TICKET_HEADER].replace(".", "x.", 1)
    for headers in ({}, ticket_headers(forged), harness.ticket_headers("another")):
        message = OutgoingMessage(subject, data, headers=record_headers(created) | headers)
        await harness.publisher.publish(message)
    await harness.wait_empty()
    assert await harness.get_result("victim") is None
    assert await harness.record("victim") == created.record
    assert await store.metric_value("gpu_runtime_messages_ignored_total") == 3
    dead_letters = await api_request(harness.nats, f"STREAM.INFO.{harness.topology.dead_letter_stream.name}")
    assert dead_letters["state"]["messages"] == 0


async def test_queries_return_bodies_pages_and_errors(store: InProcessResultStore, harness: ResultStoreHarness) -> None:
    large = result("large", body=bytes(range(256)) * (MAX_PAYLOAD_BYTES // 256))
    store.start()
    await harness.publish_results([large, result("failed", ResultState.FAILED)])
    await harness.wait_empty()
    assert await harness.get_result("large") == large
    assert await harness.get_result("another") is None
    page = await harness.list_page(state=ResultState.FAILED)
    assert [each.invocation_id for each in page.results] == ["failed"]
    subjects = harness.topology.subjects
    reply = await harness.nats.request(subjects.query(RESULT_QUERY), b"?", timeout_seconds=60)
    assert decode(reply.data, GetResultResponse).error
    reply = await harness.nats.request(subjects.query(RESULTS_QUERY), b"{}", timeout_seconds=60)
    assert decode(reply.data, ListResultsResponse).error
    assert await store.metric_value("gpu_runtime_result_queries_total") == 5


async def test_stored_body_above_the_limit_is_truncated_and_flagged(
    store: InProcessResultStore, harness: ResultStoreHarness
) -> None:
    store.streams["maxPayloadBytes"] = 2048
    store.start()
    await harness.publish_results([result("large", body=b"x" * 5000)])
    await harness.wait_empty()
    stored = await harness.get_result("large")
    assert stored is not None
    assert (len(stored.body), stored.body_truncated, stored.body_bytes) == (2048, True, 5000)


async def test_results_are_stored_once_while_the_store_is_killed_repeatedly(
    store_process: ResultStoreProcess, harness: ResultStoreHarness
) -> None:
    expected = [f"inv-{number}" for number in range(RESULT_COUNT)]

    async def has_stored_some() -> bool:
        return await store_process.metric_value("gpu_runtime_results_stored_total") > 100

    store_process.start()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(harness.publish_results(result(each, body=b"x" * 3000) for each in expected))
        for _kill in range(2):
            await until(has_stored_some, "more than 100 results are stored")
            await store_process.stop_with(signal.SIGKILL)
            store_process.start()
    await harness.wait_empty()
    assert Counter(each.invocation_id for each in await harness.list_all()) == Counter(expected)
    await store_process.stop()
    with sqlite3.connect(store_process.database) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    database.close()


async def test_unwritable_disk_fails_readiness_and_loses_nothing(
    store_process: ResultStoreProcess, harness: ResultStoreHarness
) -> None:
    store_process.start()
    await harness.publish_results([result("before")])
    await harness.wait_empty()
    with store_process.unwritable_disk():
        await harness.publish_results(result(f"inv-{number}") for number in range(500))
        await until(
            lambda: is_unready_because(store_process, "results cannot be stored and stay in the RESULT stream"),
            "the readiness check reports the problem",
        )
        assert (await store_process.request("/healthz"))[0] == 200
        assert await harness.get_result("before") is not None, "stored results must be readable"
        assert await harness.backlog() == 500
    await harness.wait_empty()
    await until(store_process.is_ready, "the result store is ready again")
    assert len(await harness.list_all()) == 501
    assert await store_process.metric_value("gpu_runtime_results_duplicate_total") == 0

    with store_process.unwritable_disk():
        await harness.publish_results(result(f"later-{number}") for number in range(300))
        await until(
            lambda: is_unready_because(store_process, "results cannot be stored"),
            "the readiness check reports the problem",
        )
        await store_process.stop()
    assert await harness.backlog() == 300, "on shutdown all pulled messages must be returned"


async def test_results_above_the_size_limit_are_evicted(
    store: InProcessResultStore, harness: ResultStoreHarness
) -> None:
    store.retention["maxBytes"] = 2 * 1024**2
    store.start()
    await harness.publish_results(result(f"inv-{number}", body=b"x" * 100_000) for number in range(60))
    await harness.wait_empty()

    async def are_evicted() -> bool:
        return await store.metric_value("gpu_runtime_results_evicted_total") >= 40

    await until(are_evicted, "the oldest results are evicted")
    remaining = {each.invocation_id for each in await harness.list_all()}
    assert "inv-59" in remaining
    assert "inv-0" not in remaining


async def test_newer_database_version_is_reported(store: InProcessResultStore) -> None:
    with sqlite3.connect(store.database) as newer:
        newer.execute("PRAGMA user_version = 99")
    newer.close()
    store.start()
    with pytest.raises(Rejected, match="has schema version 99; this process supports only version 3: run the version"):
        await store.wait_stopped()


async def test_without_nats_the_store_is_healthy_but_not_ready(store: InProcessResultStore) -> None:
    store.url = "nats://127.0.0.1:1"
    store.start()
    await until(lambda: is_unready_because(store, "not connected to NATS"), "the readiness check reports the problem")
    await until(lambda: is_unready_because(store, "[+] database: ok"), "the database is open")
    assert (await store.request("/healthz"))[0] == 200
    await store.stop()


async def test_incompatible_streams_are_reported(store: InProcessResultStore, harness: ResultStoreHarness) -> None:
    store.streams = {**store.streams, "storage": "memory"}
    store.start()
    with pytest.raises(Rejected, match="exists with storage 'file', but the settings require 'memory'"):
        await store.wait_stopped()


async def is_unready_because(store: InProcessResultStore, text: str) -> bool:
    status, body = await store.request("/readyz")
    return status == 503 and text in body
