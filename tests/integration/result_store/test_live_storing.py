"""Every result is stored once, its invocation's record ends after that, and only then is it gone from the queue."""

import asyncio
import signal
import sqlite3
from collections import Counter

import pytest

from gpu_runtime.contract.errors import Rejected
from gpu_runtime.contract.messages.dead_letter import DeadLetter
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation_record import Known, Stage, taken_back
from gpu_runtime.contract.messages.limits import BODY_LIMIT
from gpu_runtime.contract.messages.message_codec import decode, encode
from gpu_runtime.contract.messages.result import ResultState
from gpu_runtime.contract.messages.result_query import RESULT, RESULTS, FoundResult, ListedResults
from gpu_runtime.jetstream.delivery import Delivery, Done, Outcome, Outgoing
from gpu_runtime.jetstream.request_reply import ask
from gpu_runtime.jetstream.stream_specs import ConsumerSpec
from tests.integration.jetstream.streams import Seen, consuming
from tests.integration.kube.waiting import eventually
from tests.integration.result_store.conftest import NOW, MortalStore, Plane, Store, result, until

MANY = 3000


async def test_the_record_ends_with_the_state_of_the_result_that_stands(store: Store, plane: Plane) -> None:
    known = await plane.accept("one")
    store.start()
    await plane.send([result("one", ResultState.FAILED)], known)
    await plane.until_empty()
    record = await plane.record("one")
    assert record is not None
    assert (record.stage, record.result_state, record.request_hash) == (Stage.TERMINAL, ResultState.FAILED, "hash")

    await plane.send([result("one"), result("one", ResultState.CANCELLED)])
    await plane.until_empty()
    found = await plane.find("one")
    assert found is not None
    assert found.state is ResultState.FAILED
    assert (await plane.record("one")) == record
    assert await store.count("result_store_duplicates_total") == 2


async def test_a_record_that_moved_on_is_read_and_ended_all_the_same(store: Store, plane: Plane) -> None:
    """It was cancelled after the worker had looked; or the sender says nothing of it; or its time is over."""
    outrun, unsaid = await plane.accept("outrun"), await plane.accept("unsaid")
    moved = await plane.records.update("outrun", encode(taken_back(outrun.record, NOW)), outrun.revision)
    assert moved is not None
    store.start()
    await plane.send([result("outrun")], outrun)
    await plane.send([result("unsaid"), result("forgotten")])
    await plane.send([result("forgotten-too")], Known(unsaid.record, 4711))
    await plane.until_empty()
    for name, cancelled in (("outrun", True), ("unsaid", False)):
        record = await plane.record(name)
        assert record is not None
        assert (record.stage, record.cancelled) == (Stage.TERMINAL, cancelled)
    assert await plane.record("forgotten") is None
    assert await plane.record("forgotten-too") is None
    assert await plane.find("forgotten-too") is not None


async def test_what_is_stored_but_not_ended_is_ended_by_the_next_delivery(store: Store, plane: Plane) -> None:
    """A crash between the two: here the first store wrote its file and nothing else."""
    known = await plane.accept("one")
    store.start()
    await plane.send([result("one", ResultState.EXPIRED)])
    await plane.until_empty()
    back = await plane.record("one")
    assert back is not None
    entry = await plane.records.get("one")
    assert entry is not None
    revision = await plane.records.update("one", encode(known.record), entry.revision)
    assert revision is not None
    await plane.send([result("one")], Known(known.record, revision))
    await plane.until_empty()
    record = await plane.record("one")
    assert record is not None
    assert (record.stage, record.result_state) == (Stage.TERMINAL, ResultState.EXPIRED)


async def test_a_message_that_is_no_result_becomes_a_dead_letter_and_holds_up_nobody(
    store: Store, plane: Plane
) -> None:
    letters: list[DeadLetter] = []

    async def keep(delivery: Delivery) -> Outcome:
        letters.append(decode(delivery.data, DeadLetter))
        return Done()

    store.start()
    subject = plane.topology.subjects.result("thumbs")
    for data in (b"\x00 no result", b"x" * 1_000_000):
        await plane.publisher.publish(Outgoing(subject, data))
    await plane.send([result("good")])
    spec = ConsumerSpec(plane.topology.dead_letters.name, "reader")
    async with consuming(plane.publisher, Seen(keep), spec=spec):
        await eventually(lambda: len(letters) == 2, "both are dead letters")
    await plane.until_empty()
    assert {(each.failure_class, each.source.value) for each in letters} == {(FailureClass.BAD_MESSAGE, "result")}
    assert b"\x00 no result" in [each.data for each in letters]
    assert await plane.find("good") is not None


async def test_look_ups_are_answered_with_whole_bodies_pages_and_problems(store: Store, plane: Plane) -> None:
    large = result("large", body=bytes(range(256)) * (BODY_LIMIT // 256))
    store.start()
    await plane.send([large, result("failed", ResultState.FAILED)])
    await plane.until_empty()
    assert await plane.find("large") == large
    assert await plane.find("another") is None
    page = await plane.listed(state=ResultState.FAILED)
    assert [each.invocation_id for each in page.results] == ["failed"]
    subjects = plane.topology.subjects
    assert decode(await ask(plane.nats, subjects.query(RESULT), b"?", 60), FoundResult).problem
    assert decode(await ask(plane.nats, subjects.query(RESULTS), b"{}", 60), ListedResults).problem
    assert await store.count("result_store_look_ups_total") == 5


async def test_a_body_above_the_limit_is_cut_and_says_so(store: Store, plane: Plane) -> None:
    store.streams["bodyBytes"] = 2048
    store.start()
    await plane.send([result("large", body=b"x" * 5000)])
    await plane.until_empty()
    found = await plane.find("large")
    assert found is not None
    assert (len(found.body), found.body_truncated, found.body_bytes) == (2048, True, 5000)


async def test_results_are_stored_once_each_while_the_store_is_killed_again_and_again(
    mortal: MortalStore, plane: Plane
) -> None:
    expected = [f"inv-{number}" for number in range(MANY)]

    async def in_the_middle() -> bool:
        return await mortal.count("result_store_results_stored_total") > 100

    mortal.start()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(plane.send(result(each, body=b"x" * 3000) for each in expected))
        for _kill in range(2):
            await until(in_the_middle, "it stores")
            await mortal.end(signal.SIGKILL)
            mortal.start()
    await plane.until_empty()
    assert Counter(each.invocation_id for each in await plane.every()) == Counter(expected)
    await mortal.stop()
    with sqlite3.connect(mortal.database) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    database.close()


async def test_a_disk_that_takes_nothing_is_survived_and_said_and_nothing_is_lost(
    mortal: MortalStore, plane: Plane
) -> None:
    mortal.start()
    await plane.send([result("before")])
    await plane.until_empty()
    with mortal.unwritable_disk():
        await plane.send(result(f"inv-{number}") for number in range(500))
        await until(lambda: says(mortal, "results cannot be stored, and wait in their queue"), "readiness says so")
        assert (await mortal.ask("/healthz"))[0] == 200
        assert await plane.find("before") is not None, "what is stored can be looked up"
        assert await plane.waiting() == 500
    await plane.until_empty()
    await until(mortal.is_ready, "it is ready again")
    assert len(await plane.every()) == 501
    assert await mortal.count("result_store_duplicates_total") == 0

    with mortal.unwritable_disk():
        await plane.send(result(f"later-{number}") for number in range(300))
        await until(lambda: says(mortal, "results cannot be stored"), "readiness says so")
        await mortal.stop()
    assert await plane.waiting() == 300, "told to stop, it hands everything back"


async def test_results_are_forgotten_when_they_need_too_much_room(store: Store, plane: Plane) -> None:
    most = 2 * 1024**2
    store.retention["bytes"] = most
    store.start()
    await plane.send(result(f"inv-{number}", body=b"x" * 100_000) for number in range(60))
    await plane.until_empty()

    async def are_forgotten() -> bool:
        return await store.count("result_store_forgotten_total") >= 40

    await until(are_forgotten, "the oldest are forgotten")
    kept = {each.invocation_id for each in await plane.every()}
    assert "inv-59" in kept
    assert "inv-0" not in kept


async def test_a_newer_file_is_refused_in_one_sentence(store: Store) -> None:
    with sqlite3.connect(store.database) as newer:
        newer.execute("PRAGMA user_version = 99")
    newer.close()
    store.start()
    with pytest.raises(Rejected, match="has version 99; this process knows up to version 1: upgrade it"):
        await store.ended()


async def test_without_nats_it_is_healthy_and_not_ready_and_stops_when_told(store: Store) -> None:
    store.url = "nats://127.0.0.1:1"
    store.start()
    await until(lambda: says(store, "not connected to NATS"), "readiness says so")
    await until(lambda: says(store, "[+] database: ok"), "the database is open all the same")
    assert (await store.ask("/healthz"))[0] == 200
    await store.stop()


async def test_streams_that_cannot_be_what_the_settings_want_are_refused_in_one_sentence(
    store: Store, plane: Plane
) -> None:
    store.streams = {**store.streams, "storage": "memory"}
    store.start()
    with pytest.raises(Rejected, match="exists with storage 'file'; wanted is 'memory'"):
        await store.ended()


async def says(store: Store, sentence: str) -> bool:
    status, text = await store.ask("/readyz")
    return status == 503 and sentence in text
