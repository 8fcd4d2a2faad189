"""Each message is handled until it is done or given up, by one at a time, for as long as that takes."""

import asyncio
import signal
import sys
from dataclasses import replace
from itertools import pairwise

import pytest

from gpu_runtime.jetstream.api import call
from gpu_runtime.jetstream.connection import Connection, connection
from gpu_runtime.jetstream.delivery import Delivery, Done, GiveUp, Outcome, Outgoing, Retry
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.pull_consumer import Consumption
from gpu_runtime.jetstream.puller import Patience
from gpu_runtime.jetstream.stream_admin import consumer_load, delete_consumer, ensure_consumer, messages_by_subject
from gpu_runtime.jetstream.stream_specs import ConsumerSpec
from localcluster.nats_server import Account
from tests.integration.jetstream.conftest import options
from tests.integration.jetstream.streams import BRIEF, QUICK, TAKERS, Seen, consuming, make_streams, to_dead
from tests.integration.kube.waiting import eventually


@pytest.fixture(autouse=True)
async def streams(connected: Connection) -> None:
    await make_streams(connected)


async def held(connection: Connection, stream: str = "WORK") -> int:
    count: int = (await call(connection, f"STREAM.INFO.{stream}"))["state"]["messages"]
    return count


async def until_empty(connection: Connection) -> None:
    async with asyncio.timeout(60):
        while await held(connection):  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.02)


async def publish(publisher: Publisher, count: int, subject: str = "work.a") -> None:
    await publisher.publish_many(Outgoing(subject, b"%d" % number) for number in range(count))


async def test_everything_is_handled_once_and_taken_from_the_stream(
    connected: Connection, publisher: Publisher
) -> None:
    seen = Seen()
    await publish(publisher, 500)
    async with consuming(publisher, seen):
        await eventually(lambda: len(seen.deliveries) >= 500, "all are delivered")
        await until_empty(connected)
    assert set(seen.data.values()) == {1}


async def test_two_consumptions_of_one_consumer_share_the_work(connected: Connection, publisher: Publisher) -> None:
    gate = asyncio.Event()

    async def waiting(_delivery: Delivery) -> Outcome:
        await gate.wait()
        return Done()

    one, two = Seen(waiting), Seen(waiting)
    await publish(publisher, 16)
    async with consuming(publisher, one), consuming(publisher, two):
        await eventually(lambda: len(one.deliveries) + len(two.deliveries) == 16, "both are full")
        assert (len(one.deliveries), len(two.deliveries)) == (8, 8)
        gate.set()
        await until_empty(connected)
    assert set((one.data + two.data).values()) == {1}


async def test_no_more_than_there_is_room_for_are_taken(connected: Connection, publisher: Publisher) -> None:
    """What one cannot begin with, another may have."""
    gate, most, running = asyncio.Event(), 0, 0

    async def counted(_delivery: Delivery) -> Outcome:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await gate.wait()
        await asyncio.sleep(0)
        running -= 1
        return Done()

    seen = Seen(counted)
    await publish(publisher, 30)
    async with consuming(publisher, seen, replace(QUICK, at_once=3)) as consumption:
        await eventually(lambda: consumption.in_flight == 3, "three are in hand")
        load = await consumer_load(connected, TAKERS)
        assert (load.in_flight, load.waiting) == (3, 27)
        gate.set()
        await until_empty(connected)
    assert most == 3


async def test_a_pause_ends_while_something_is_still_in_hand(connected: Connection, publisher: Publisher) -> None:
    gate = asyncio.Event()

    async def first_waits(delivery: Delivery) -> Outcome:
        if delivery.data == b"0":
            await gate.wait()
        return Done()

    seen = Seen(first_waits)
    async with consuming(publisher, seen) as consumption:
        await publish(publisher, 1)
        await eventually(lambda: consumption.in_flight == 1, "the first is in hand")
        consumption.pause()
        await publisher.publish(Outgoing("work.a", b"1"))
        await until_nobody_pulls(connected)
        assert set(seen.data) == {b"0"}
        consumption.resume()
        await eventually(lambda: b"1" in seen.data, "the second is handled")
        assert consumption.in_flight == 1, "beside the first"
        gate.set()
        await until_empty(connected)
    assert set(seen.data.values()) == {1}


async def until_nobody_pulls(connection: Connection) -> None:
    async with asyncio.timeout(60):
        while (await consumer_load(connection, TAKERS)).pulls:  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.02)


async def test_a_message_that_comes_later_is_handled_at_once(connected: Connection, publisher: Publisher) -> None:
    seen = Seen()
    async with consuming(publisher, seen, replace(QUICK, at_once=1, patience=Patience(300, heartbeat=0.5))):
        for number in range(1, 20):
            await publisher.publish(Outgoing("work.a", b"%d" % number))
            await eventually(lambda: len(seen.deliveries) == number, "it is delivered, long before the pull ends")  # noqa: B023


@pytest.mark.parametrize("status", ["404", "409", "100", "503", "\xff"])
async def test_a_message_that_looks_like_a_word_of_the_server_is_a_message(
    connected: Connection, publisher: Publisher, status: str
) -> None:
    seen = Seen()
    await publisher.publish(Outgoing("work.a", b"", headers={"Status": status, "Nats-Pending-Messages": "8"}))
    await publisher.publish(Outgoing("work.a", b"next"))
    async with consuming(publisher, seen):
        await until_empty(connected)
    assert seen.data == {b"": 1, b"next": 1}


async def test_an_idle_consumption_asks_for_nothing(connected: Connection, publisher: Publisher) -> None:
    async with consuming(publisher, Seen()):
        await eventually(lambda: connected.connected, "connected")
        async with asyncio.timeout(60):
            while True:  # its one pull waits on the server
                try:
                    if (await consumer_load(connected, TAKERS)).pulls == 1:
                        break
                except Exception:  # noqa: BLE001, S110 - the consumer is just being made
                    pass
                await asyncio.sleep(0.02)
        session = connected._session
        assert session is not None
        before = session.client.stats["out_msgs"]
        await asyncio.sleep(1.2)  # two heartbeats of the server
        assert session.client.stats["out_msgs"] == before


async def test_a_handler_three_times_as_long_as_the_ack_wait_runs_once(
    connected: Connection, publisher: Publisher
) -> None:
    async def slow(_delivery: Delivery) -> Outcome:
        await asyncio.sleep(3 * BRIEF.ack_wait)
        return Done()

    one, two = Seen(slow), Seen(slow)
    await publish(publisher, 4)
    async with consuming(publisher, one, spec=BRIEF), consuming(publisher, two, spec=BRIEF):
        await until_empty(connected)
    assert set((one.data + two.data).values()) == {1}


async def test_a_retry_comes_after_the_delay_that_was_asked_for(connected: Connection, publisher: Publisher) -> None:
    times: list[float] = []

    async def flaky(delivery: Delivery) -> Outcome:
        times.append(asyncio.get_running_loop().time())
        return Retry("not yet", delay=0.4) if delivery.attempt < 3 else Done()

    seen = Seen(flaky)
    await publish(publisher, 1)
    async with consuming(publisher, seen):
        await until_empty(connected)
    assert [each.attempt for each in seen.deliveries] == [1, 2, 3]
    assert all(0.39 <= later - earlier < TAKERS.ack_wait for earlier, later in pairwise(times))


async def test_a_handler_that_raises_is_tried_again_with_growing_pauses(
    connected: Connection, publisher: Publisher
) -> None:
    times: list[float] = []

    async def broken(delivery: Delivery) -> Outcome:
        times.append(asyncio.get_running_loop().time())
        if delivery.attempt < 4:
            raise RuntimeError("boom")
        return Done()

    await publish(publisher, 1)
    async with consuming(publisher, Seen(broken)):
        await until_empty(connected)
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert len(pauses) == 3
    assert all(pause >= expected - 0.01 for pause, expected in zip(pauses, (0.05, 0.1, 0.2), strict=True))


async def dead_letters(connected: Connection, publisher: Publisher) -> list[Delivery]:
    seen = Seen()
    async with consuming(publisher, seen, spec=ConsumerSpec("DEAD", "reader")):
        count = await held(connected, "DEAD")
        await eventually(lambda: len(seen.deliveries) == count, "the dead letters are read")
    return seen.deliveries


async def test_what_fails_too_often_becomes_a_dead_letter_with_its_bytes(
    connected: Connection, publisher: Publisher
) -> None:
    async def never(_delivery: Delivery) -> Outcome:
        return Retry("still broken", delay=0.01)

    seen = Seen(never)
    original = bytes(range(256))
    await publisher.publish(Outgoing("work.a", original))
    async with consuming(publisher, seen):
        await until_empty(connected)
    assert [each.attempt for each in seen.deliveries] == [1, 2, 3, 4, 5]
    (letter,) = await dead_letters(connected, publisher)
    assert letter.data == original
    assert letter.headers["Reason"] == "given up after 5 tries; the last one: still broken"


async def test_what_kills_its_consumer_is_given_up_at_receipt(connected: Connection, publisher: Publisher) -> None:
    """Nobody was left to count its tries but the server."""
    await publish(publisher, 1)
    policy = replace(QUICK, attempts=2)
    seen = Seen()

    async def vanish(_delivery: Delivery) -> Outcome:
        await asyncio.Event().wait()
        return Done()

    seen.answer = vanish
    for _ in range(2):
        running = asyncio.create_task(Consumption(publisher, TAKERS, seen, to_dead, policy).run(asyncio.Event()))
        before = len(seen.deliveries)
        await eventually(lambda: len(seen.deliveries) > before, "it is delivered")  # noqa: B023
        running.cancel()
        await asyncio.wait({running})
    async with consuming(publisher, seen, policy):
        await until_empty(connected)
    assert [each.attempt for each in seen.deliveries] == [1, 2]
    (letter,) = await dead_letters(connected, publisher)
    assert letter.headers["Reason"] == "given up after 2 tries, of which the last one never came back"


async def test_giving_up_at_once_needs_no_further_try(connected: Connection, publisher: Publisher) -> None:
    async def hopeless(_delivery: Delivery) -> Outcome:
        return GiveUp("unreadable", kind="bad_message")

    seen = Seen(hopeless)
    await publish(publisher, 1)
    async with consuming(publisher, seen):
        await until_empty(connected)
    assert len(seen.deliveries) == 1
    assert await held(connected, "DEAD") == 1


async def test_what_cannot_be_kept_as_a_dead_letter_stays_in_its_queue(
    connected: Connection, publisher: Publisher
) -> None:
    async def hopeless(_delivery: Delivery) -> Outcome:
        return GiveUp("unreadable")

    await call(connected, "STREAM.DELETE.DEAD")
    impatient = Publisher(connected, patience=0.1)
    seen = Seen(hopeless)
    await publish(publisher, 1)
    async with consuming(impatient, seen):
        await eventually(lambda: len(seen.deliveries) >= 2, "it comes again")
        assert await held(connected) == 1
        await make_streams(connected)
        await until_empty(connected)
    assert await held(connected, "DEAD") == 1


async def test_told_to_stop_it_ends_what_it_has_and_leaves_the_rest(
    connected: Connection, publisher: Publisher
) -> None:
    gate = asyncio.Event()

    async def waiting(_delivery: Delivery) -> Outcome:
        await gate.wait()
        return Done()

    seen, stopping = Seen(waiting), asyncio.Event()
    await publish(publisher, 20)
    consumption = Consumption(publisher, BRIEF, seen, to_dead, QUICK)
    running = asyncio.create_task(consumption.run(stopping))
    await eventually(lambda: consumption.in_flight == 8, "it is full")
    stopping.set()
    await asyncio.sleep(2 * BRIEF.ack_wait)
    assert not running.done()
    gate.set()
    await running
    assert len(seen.deliveries) == 8
    async with asyncio.timeout(60):
        while await held(connected) > 12:  # noqa: ASYNC110 - the server takes its time with acknowledgements
            await asyncio.sleep(0.02)
    assert await held(connected) == 12
    rest = Seen()
    async with consuming(publisher, rest, spec=BRIEF):
        await until_empty(connected)
    assert {each.attempt for each in rest.deliveries} == {1}


async def test_cut_short_it_hands_back_what_it_has_at_once(connected: Connection, publisher: Publisher) -> None:
    spec = replace(TAKERS, ack_wait=600)

    async def endless(_delivery: Delivery) -> Outcome:
        await asyncio.Event().wait()
        return Done()

    seen = Seen(endless)
    await publish(publisher, 3)
    running = asyncio.create_task(Consumption(publisher, spec, seen, to_dead, QUICK).run(asyncio.Event()))
    await eventually(lambda: len(seen.deliveries) == 3, "all are in hand")
    running.cancel()
    await asyncio.wait({running})
    rest = Seen()
    async with consuming(publisher, rest, spec=spec):
        await until_empty(connected)  # within a minute, and not ten
    assert {each.attempt for each in rest.deliveries} == {2}


VICTIM = """
import asyncio, sys
from gpu_runtime.jetstream.connection import connection
from gpu_runtime.jetstream.pull_consumer import Consumption, Policy
from gpu_runtime.jetstream.connection_options import Options
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.puller import Patience
from gpu_runtime.jetstream.stream_specs import ConsumerSpec

async def hang(delivery):
    print(delivery.data.decode(), flush=True)
    await asyncio.Event().wait()

async def main():
    async with connection(Options((sys.argv[1],))) as made:
        await made.wait(60)
        spec = ConsumerSpec("WORK", "takers", ack_wait=float(sys.argv[2]))
        await Consumption(Publisher(made), spec, hang, lambda *_: [], Policy(at_once=4)).run(asyncio.Event())

asyncio.run(main())
"""


async def test_the_work_of_a_killed_process_goes_to_another_within_the_ack_wait(
    connected: Connection, publisher: Publisher, nats_account: Account
) -> None:
    await publish(publisher, 4)
    victim = await asyncio.create_subprocess_exec(
        sys.executable, "-c", VICTIM, nats_account.url, str(BRIEF.ack_wait), stdout=asyncio.subprocess.PIPE
    )
    assert victim.stdout is not None
    taken = [await asyncio.wait_for(victim.stdout.readline(), 60) for _ in range(4)]
    assert sorted(taken) == [b"0\n", b"1\n", b"2\n", b"3\n"]
    await asyncio.sleep(2 * BRIEF.ack_wait)  # it lives, and keeps what it has
    seen = Seen()
    async with consuming(publisher, seen, spec=BRIEF):
        assert seen.deliveries == []
        victim.send_signal(signal.SIGKILL)
        await victim.wait()
        await until_empty(connected)
    assert {each.attempt for each in seen.deliveries} == {2}
    assert len(seen.deliveries) == 4


async def test_a_consumer_that_somebody_deletes_is_made_again(connected: Connection, publisher: Publisher) -> None:
    seen = Seen()
    async with consuming(publisher, seen) as consumption:
        await publish(publisher, 1)
        await until_empty(connected)
        await delete_consumer(connected, TAKERS)
        await publish(publisher, 1)
        await until_empty(connected)
        assert consumption.problem() is None
    assert len(seen.deliveries) == 2


async def test_a_missing_stream_is_said_and_waited_for(connected: Connection, publisher: Publisher) -> None:
    await call(connected, "STREAM.DELETE.WORK")
    seen = Seen()
    async with consuming(publisher, seen) as consumption:
        await eventually(lambda: "stream not found" in (consumption.problem() or ""), "the problem is told")
        await make_streams(connected)
        await publish(publisher, 1)
        await until_empty(connected)
        assert consumption.problem() is None


async def test_the_retries_of_one_subject_do_not_hold_up_another(connected: Connection, publisher: Publisher) -> None:
    async def cold(delivery: Delivery) -> Outcome:
        return Retry("cold", delay=60) if delivery.subject == "work.cold" else Done()

    seen = Seen(cold)
    await publish(publisher, 1500, "work.cold")
    await publish(publisher, 10, "work.warm")
    async with consuming(publisher, seen):
        async with asyncio.timeout(60):
            while "work.warm" in await messages_by_subject(connected, "WORK", "work.*"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def test_no_task_is_left_behind(nats_account: Account) -> None:
    before = asyncio.all_tasks()
    async with connection(options(nats_account)) as made:
        await made.wait(60)
        await make_streams(made)
        await ensure_consumer(made, TAKERS)
        publisher = Publisher(made)
        seen = Seen()
        async with consuming(publisher, seen):
            await publish(publisher, 20)
            await until_empty(made)
    await eventually(lambda: asyncio.all_tasks() == before, "no task is left")
