"""What an invocation costs, beside a bare NATS pipeline of the same hops that is measured in the same run.

    python -m bench.invoke [--functions 1 10 100] [--calls 2500]

Real processes: the runtime API, the activator, the result store, the controller manager, a sidecar and a framework per
function, a NATS server with files, an API server. Calls come over HTTP from a process of their own, to so many
functions in turn. An asynchronous call counts when its result is stored in the database, a synchronous one when its
caller has the answer.

The cold calls are to functions without any worker, to one after another and to many at once: they count until the pod
of the first worker exists. Their floor is `bench/floors/cold_start.py`, that of the others `bench/floors/nats_pipeline.py`.
"""

import argparse
import asyncio
from collections.abc import Sequence
from contextlib import ExitStack

import msgspec

from bench.floors import cold_start
from bench.floors.nats_pipeline import emptied, hops, make_queues
from bench.invoke_load import Job, Outcome, Pipeline, RuntimeAPI, run
from bench.report import Chart, Findings, Row, present, quantile, tell
from bench.serverless_stack import Plane, Worker, cpu_of_workers, make_functions, plane, workers
from bench.start_runtime_api import TOKEN
from bench.testbed import see_pods
from gpu_runtime.contract.crd.well_known import INSTANCE_NAMESPACE, Label

PAYLOAD = {"prompt": "draw a robot", "steps": 20}
CALLERS = 64
SYNC_CALLS, WARM_UP = 300, 50
COLD_TURNS = 10
"""How often one function alone is woken up."""
PER_SECOND, SYNC_P50, COLD = 500, 0.007, 0.3


class Warm(msgspec.Struct):
    """Seconds, rising, and calls per second."""

    functions: int
    per_second: float
    sync: list[float]
    busy: list[float]
    """Synchronous calls, eight at a time."""
    cpu: dict[str, float] = {}
    """Milliseconds per asynchronous call, by process."""


class Cold(msgspec.Struct):
    """Seconds from the first call until each function's first pod, rising."""

    functions: int
    """Called at once."""
    until_pod: list[float]
    floor: list[float]


class Details(msgspec.Struct):
    floor: Warm
    warm: list[Warm]
    cold: list[Cold]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--functions", type=int, nargs="+", default=[1, 10, 100], help="rising")
    parser.add_argument("--calls", type=int, default=2500, help="asynchronous calls")
    options = parser.parse_args()
    present("invocation", lambda: asyncio.run(measure(options.functions, options.calls)))


async def measure(functions: Sequence[int], calls: int) -> Findings:
    async with plane() as at:
        tell("the floor")
        floor = await floored(at, calls)
        warm = await warmed(at, functions, calls)
        await at.api.create("/api/v1/namespaces", {"metadata": {"name": cold_start.NAMESPACE}})
        cold = [await woken(at, count) for count in functions]
    found = Details(floor, warm, cold)
    return Findings(rows(found), charts(found), found)


async def warmed(at: Plane, functions: Sequence[int], calls: int) -> list[Warm]:
    """With more and more functions, each with a worker."""
    found, names, ready = [], list[str](), list[Worker]()
    with ExitStack() as running:
        for count in functions:
            tell(f"{count} warm")
            more = [f"warm{number}" for number in range(len(names), count)]
            await make_functions(at, more, running=True)
            names += more
            ready += running.enter_context(workers(at, more))
            found.append(await called(at, names, ready, calls))
    return found


async def called(at: Plane, names: list[str], ready: Sequence[Worker], calls: int) -> Warm:
    contender, name = RuntimeAPI(at.runtime_api.url, TOKEN, names), f"of-{len(names)}"
    sync, busy = await synchronous(at, contender, name, max(WARM_UP, len(names)))
    before, stored = at.cpu() | cpu_of_workers(ready), at.stored()
    outcome = await made(at, Job(contender, f"async-{name}", calls, CALLERS, payload=PAYLOAD))
    ended = await at.all_stored(stored + calls, 120)
    after = at.cpu() | cpu_of_workers(ready)
    spent = {process: 1000 * (after[process] - cpu) / calls for process, cpu in before.items()}
    return Warm(len(names), calls / (ended - outcome.began), sync, busy, spent)


async def floored(at: Plane, calls: int) -> Warm:
    url = at.nats.account().url
    await make_queues(url)
    with hops(url):
        sync, busy = await synchronous(at, Pipeline(url), "floor", WARM_UP)
        outcome = await made(at, Job(Pipeline(url), "async", calls, CALLERS, payload=PAYLOAD))
        return Warm(0, calls / (await emptied(url) - outcome.began), sync, busy)


async def synchronous(
    at: Plane, contender: RuntimeAPI | Pipeline, name: str, warm_up: int
) -> tuple[list[float], list[float]]:
    """One call after the other, and eight at a time. Each function is called before it counts."""

    async def seconds(what: str, calls: int, callers: int) -> list[float]:
        job = Job(contender, f"{what}-{name}", calls, callers, sync=True, payload=PAYLOAD)
        return sorted((await made(at, job)).seconds)

    await seconds("warm-up", warm_up, 8)
    return await seconds("sync", SYNC_CALLS, 1), await seconds("busy", SYNC_CALLS, 8)


async def made(at: Plane, job: Job) -> Outcome:
    outcome = await run(job, at.folder)
    if outcome.refusals:
        raise RuntimeError(outcome.refusals[0])
    return outcome


async def woken(at: Plane, count: int) -> Cold:
    """One function alone is woken up several times, each time another; many are woken up at once, once."""
    tell(f"{count} cold")
    found = Cold(count, [], [])
    for turn in range(COLD_TURNS if count == 1 else 1):
        names = [f"cold{count}x{turn}x{number}" for number in range(count)]
        found.until_pod += await cold_calls(at, names)
        found.floor += await cold_start.start_bare(at.api, names)
    return Cold(count, sorted(found.until_pod), sorted(found.floor))


async def cold_calls(at: Plane, names: list[str]) -> list[float]:
    """The functions are known to everybody before."""
    await make_functions(at, names, running=False)
    await asyncio.sleep(1)
    contender, seen = RuntimeAPI(at.runtime_api.url, TOKEN, names), dict[str, float]()
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(see_pods(at.api, INSTANCE_NAMESPACE, names, _function_of, seen))
        outcome = await made(at, Job(contender, names[0], len(names), len(names), payload=PAYLOAD))
    return [moment - outcome.began for moment in seen.values()]


def _function_of(labels: dict[str, str]) -> str:
    """A worker is named after its function, and something."""
    return labels.get(Label.UNIT, "").rpartition("-")[0]


def rows(found: Details) -> list[Row]:
    return [
        *(row for warm in found.warm for row in _warm_rows(warm, found.floor, promised=warm is found.warm[0])),
        *(row for cold in found.cold for row in _cold_rows(cold, promised=cold is found.cold[0])),
        *(_cpu_row(process, found.warm) for process in found.warm[0].cpu),
    ]


def _warm_rows(warm: Warm, floor: Warm, *, promised: bool) -> list[Row]:
    who, rate, p50 = _words(warm.functions), warm.per_second, quantile(warm.sync, 0.5)
    rows = [
        Row(f"{who}: asynchronous calls per second until stored", rate, "", floor.per_second),
        _time_row(f"{who}: synchronous call, one at a time: p50", warm.sync, floor.sync, 0.5),
        _time_row(f"{who}: synchronous call, one at a time: p99", warm.sync, floor.sync, 0.99),
        _time_row(f"{who}: synchronous call, eight at a time: p50", warm.busy, floor.busy, 0.5),
    ]
    if promised:
        rows[0].target, rows[0].missed = f">= {PER_SECOND}", rate < PER_SECOND
        rows[1].target, rows[1].missed = f"{1000 * SYNC_P50:g} ms", p50 > SYNC_P50
    return rows


def _cold_rows(cold: Cold, *, promised: bool) -> list[Row]:
    who = f"{_words(cold.functions)} called at once, until the first worker's pod"
    rows = [
        _time_row(f"{who}: p50", cold.until_pod, cold.floor, 0.5),
        _time_row(f"{who}: longest", cold.until_pod, cold.floor, 1),
    ]
    if promised:
        rows[0].target, rows[0].missed = f"{1000 * COLD:g} ms", quantile(cold.until_pod, 0.5) > COLD
    return rows


def _time_row(what: str, rising: list[float], floor: list[float], share: float) -> Row:
    return Row(what, 1000 * quantile(rising, share), "ms", 1000 * quantile(floor, share))


def _cpu_row(process: str, warm: Sequence[Warm]) -> Row:
    """The most functions beside the fewest: what a call costs must not depend on them."""
    what = f"CPU per asynchronous call of {_words(warm[-1].functions)}, beside {warm[0].functions}: {process}"
    return Row(what, warm[-1].cpu[process], "ms", warm[0].cpu[process])


def _words(functions: int) -> str:
    return f"{functions} functions" if functions > 1 else "1 function"


def charts(found: Details) -> list[Chart]:
    points, floor, across = [warm.functions for warm in found.warm], found.floor, "functions"
    rates = {
        "until stored": [warm.per_second for warm in found.warm],
        "floor: NATS alone": [floor.per_second] * len(points),
    }
    sync = {
        "p50": [1000 * quantile(warm.sync, 0.5) for warm in found.warm],
        "p99": [1000 * quantile(warm.sync, 0.99) for warm in found.warm],
        "floor: NATS alone, p50": [1000 * quantile(floor.sync, 0.5)] * len(points),
    }
    cold = {
        "p50": [1000 * quantile(cold.until_pod, 0.5) for cold in found.cold],
        "longest": [1000 * cold.until_pod[-1] for cold in found.cold],
        "floor: bare Deployments, p50": [1000 * quantile(cold.floor, 0.5) for cold in found.cold],
        "floor: longest": [1000 * cold.floor[-1] for cold in found.cold],
    }
    return [
        Chart("throughput", "asynchronous calls per second", across, points, rates, PER_SECOND),
        Chart("latency", "synchronous call, one at a time, ms", across, points, sync, 1000 * SYNC_P50),
        Chart("cold", "from a call until the pod, ms", "functions called at once", points, cold, 1000 * COLD),
    ]


if __name__ == "__main__":
    main()
