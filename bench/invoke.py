"""What an invocation costs, beside a bare NATS pipeline of the same hops that is measured in the same run.

    python -m bench.invoke [--calls 4000]

Real processes: the runtime API, the activator, the result store, the controller manager, a sidecar and a framework per
function, a NATS server with files, an API server. Calls come over HTTP from a process of their own. An asynchronous
call counts when its result is stored in the database, a synchronous one when its caller has the answer.

The cold calls are to functions without any worker: they count until the pod of the first one exists.
"""

import argparse
import asyncio
import sys
import time

import msgspec

from bench.calls import Job, Pipeline, RuntimeAPI, run
from bench.handing_over import quantile
from bench.pipeline import emptied, hops, make_queues
from bench.runtime_api import TOKEN
from bench.serving import UNITS, Plane, function, plane, pod_time, workers
from bench.table import Row, print_table
from localcluster.places import LOCAL

RESULTS = LOCAL / "bench" / "invoke.json"
PAYLOAD = {"prompt": "draw a robot", "steps": 20}
AT_A_TIME = 64
SYNC_CALLS, COLD_CALLS, WARM_UP = 400, 10, 50
PER_SECOND, SYNC_P50, COLD = 500, 0.007, 0.3


class Report(msgspec.Struct):
    rows: list[Row] = []
    cpu: dict[str, float] = {}
    """Milliseconds per asynchronous call, by process."""
    seconds: float = 0


class Measured(msgspec.Struct):
    per_second: float
    sync: list[float]
    busy: list[float]
    """Synchronous calls, eight at a time."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--calls", type=int, default=4000, help="asynchronous calls")
    calls = parser.parse_args().calls
    started = time.perf_counter()
    report = asyncio.run(observe(calls))
    report.seconds = time.perf_counter() - started
    print_table(report.rows)
    print("\nCPU per asynchronous call: " + ", ".join(f"{name} {spent:.2f} ms" for name, spent in report.cpu.items()))
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    print(f"\nTook {report.seconds:.0f} s. All figures: {RESULTS.relative_to(LOCAL.parent)}")
    sys.exit(any(row.missed for row in report.rows))


async def observe(calls: int) -> Report:
    report = Report()
    async with plane() as at:
        _tell("warm")
        await at.api.create(UNITS, function("warm", running=True))
        with workers(at, ["warm"]) as of_workers:
            warm, report.cpu = await measured(at, ["warm"], calls)
        report.cpu |= {name: 1000 * spent / calls for name, spent in of_workers.items()}
        _tell("cold")
        cold = [await cold_start(at, f"cold{number}") for number in range(COLD_CALLS)]
        _tell("the floor")
        floor = await floored(at, calls)
    report.rows = rows(warm, floor, sorted(cold))
    return report


def rows(warm: Measured, floor: Measured, cold: list[float]) -> list[Row]:
    sync, busy = quantile(warm.sync, 0.5), quantile(warm.busy, 0.5)
    slow = warm.per_second < PER_SECOND
    floor_sync, floor_p99, floor_busy = (
        1000 * quantile(latencies, share)
        for latencies, share in ((floor.sync, 0.5), (floor.sync, 0.99), (floor.busy, 0.5))
    )
    late = quantile(cold, 0.5)
    return [
        Row("asynchronous calls per second until stored", warm.per_second, "", floor.per_second, ">= 500", missed=slow),
        Row("synchronous call, one at a time: p50", 1000 * sync, "ms", floor_sync, "7 ms", missed=sync > SYNC_P50),
        Row("synchronous call, one at a time: p99", 1000 * quantile(warm.sync, 0.99), "ms", floor_p99),
        Row("synchronous call, eight at a time: p50", 1000 * busy, "ms", floor_busy),
        Row("from a call until the first worker's pod: p50", 1000 * late, "ms", None, "300 ms", missed=late > COLD),
        Row("from a call until the first worker's pod: longest", 1000 * cold[-1], "ms"),
    ]


async def measured(at: Plane, functions: list[str], calls: int) -> tuple[Measured, dict[str, float]]:
    """What the platform does, and its CPU in milliseconds per asynchronous call."""
    contender = RuntimeAPI([each.url for each in at.replicas], TOKEN, functions)
    await called(at, Job(contender, "warm-up", WARM_UP, 8, sync=True, payload=PAYLOAD))
    sync = await called(at, Job(contender, "sync", SYNC_CALLS, 1, sync=True, payload=PAYLOAD))
    busy = await called(at, Job(contender, "busy", SYNC_CALLS, 8, sync=True, payload=PAYLOAD))
    before, stored = at.cpu(), at.stored()
    job = Job(contender, "async", calls, AT_A_TIME, payload=PAYLOAD)
    outcome = await run(job, at.folder)
    if outcome.refusals:
        raise RuntimeError(outcome.refusals[0])
    ended = await at.all_stored(stored + calls, 120)
    spent = {name: 1000 * (after - before[name]) / calls for name, after in at.cpu().items()}
    return Measured(calls / (ended - outcome.began), sync, busy), spent


async def called(at: Plane, job: Job) -> list[float]:
    """Rising, in seconds."""
    outcome = await run(job, at.folder)
    if outcome.refusals:
        raise RuntimeError(outcome.refusals[0])
    return sorted(outcome.seconds)


async def floored(at: Plane, calls: int) -> Measured:
    url = at.nats.account().url
    await make_queues(url)
    with hops(url):
        await called(at, Job(Pipeline(url), "warm-up", WARM_UP, 8, sync=True, payload=PAYLOAD))
        sync = await called(at, Job(Pipeline(url), "sync", SYNC_CALLS, 1, sync=True, payload=PAYLOAD))
        busy = await called(at, Job(Pipeline(url), "busy", SYNC_CALLS, 8, sync=True, payload=PAYLOAD))
        outcome = await run(Job(Pipeline(url), "async", calls, AT_A_TIME, payload=PAYLOAD), at.folder)
        return Measured(calls / (await emptied(url) - outcome.began), sync, busy)


async def cold_start(at: Plane, name: str) -> float:
    """From the call until the pod exists. The function is known to everybody before."""
    await at.api.create(UNITS, function(name, running=False))
    await asyncio.sleep(1)
    contender = RuntimeAPI([each.url for each in at.replicas], TOKEN, [name])
    existing = asyncio.create_task(pod_time(at, name))
    outcome = await run(Job(contender, name, 1, 1, payload=PAYLOAD), at.folder)
    async with asyncio.timeout(30):
        return await existing - outcome.began


def _tell(what: str) -> None:
    print(f"… {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
