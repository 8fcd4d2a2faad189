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
from bench.floors.nats_pipeline import create_streams, start_hops, wait_until_empty
from bench.invoke_load import InvokeAPITarget, InvokeJob, InvokeLoadResult, InvokePipelineTarget, run_invoke_load
from bench.report import BenchmarkResult, Chart, Row, log_progress, quantile, report_and_exit
from bench.serverless_stack import (
    ServerlessStack,
    WorkerProcesses,
    create_functions,
    serverless_stack,
    start_workers,
    worker_cpu_seconds,
)
from bench.start_runtime_api import API_TOKEN
from bench.testbed import record_first_pods
from gpu_runtime.contract.crd.well_known import INSTANCE_NAMESPACE, Label

PAYLOAD = {"prompt": "draw a robot", "steps": 20}
ASYNC_CONCURRENCY = 64
SYNC_CALL_COUNT, WARM_UP_CALLS = 300, 50
COLD_START_REPEATS = 10
"""How often one function alone is woken up."""
MIN_ASYNC_CALLS_PER_SECOND, MAX_SYNC_P50_SECONDS, MAX_COLD_START_SECONDS = 500, 0.007, 0.3


class WarmMeasurement(msgspec.Struct):
    """Seconds, rising, and calls per second."""

    functions: int
    calls_per_second: float
    sync_seconds: list[float]
    concurrent_sync_seconds: list[float]
    """Synchronous calls, eight at a time."""
    cpu_milliseconds: dict[str, float] = {}
    """Milliseconds per asynchronous call, by process."""


class ColdStartMeasurement(msgspec.Struct):
    """Seconds from the first call until each function's first pod, rising."""

    functions: int
    """Called at once."""
    pod_seconds: list[float]
    floor_pod_seconds: list[float]


class InvokeDetails(msgspec.Struct):
    floor: WarmMeasurement
    warm: list[WarmMeasurement]
    cold: list[ColdStartMeasurement]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--functions", type=int, nargs="+", default=[1, 10, 100], help="rising")
    parser.add_argument("--calls", type=int, default=2500, help="asynchronous calls")
    options = parser.parse_args()
    report_and_exit("invocation", lambda: asyncio.run(measure(options.functions, options.calls)))


async def measure(functions: Sequence[int], calls: int) -> BenchmarkResult:
    async with serverless_stack() as at:
        log_progress("the floor")
        floor = await measure_floor(at, calls)
        warm = await measure_warm(at, functions, calls)
        await at.kube.create("/api/v1/namespaces", {"metadata": {"name": cold_start.NAMESPACE}})
        cold = [await measure_cold_starts(at, count) for count in functions]
    found = InvokeDetails(floor, warm, cold)
    return BenchmarkResult(rows(found), charts(found), found)


async def measure_warm(at: ServerlessStack, functions: Sequence[int], calls: int) -> list[WarmMeasurement]:
    """With more and more functions, each with a worker."""
    found, names, ready = [], list[str](), list[WorkerProcesses]()
    with ExitStack() as running:
        for count in functions:
            log_progress(f"{count} warm")
            more = [f"warm{number}" for number in range(len(names), count)]
            await create_functions(at, more, running=True)
            names += more
            ready += running.enter_context(start_workers(at, more))
            found.append(await measure_warm_functions(at, names, ready, calls))
    return found


async def measure_warm_functions(
    at: ServerlessStack, names: list[str], ready: Sequence[WorkerProcesses], calls: int
) -> WarmMeasurement:
    contender, name = InvokeAPITarget(at.runtime_api.url, API_TOKEN, names), f"of-{len(names)}"
    sync, busy = await measure_sync(at, contender, name, max(WARM_UP_CALLS, len(names)))
    before, stored = at.cpu_seconds() | worker_cpu_seconds(ready), at.stored_count()
    outcome = await run_calls(at, InvokeJob(contender, f"async-{name}", calls, ASYNC_CONCURRENCY, payload=PAYLOAD))
    ended = await at.wait_until_stored(stored + calls, 120)
    after = at.cpu_seconds() | worker_cpu_seconds(ready)
    spent = {process: 1000 * (after[process] - cpu) / calls for process, cpu in before.items()}
    return WarmMeasurement(len(names), calls / (ended - outcome.started_at), sync, busy, spent)


async def measure_floor(at: ServerlessStack, calls: int) -> WarmMeasurement:
    url = at.nats.create_account().url
    await create_streams(url)
    with start_hops(url):
        sync, busy = await measure_sync(at, InvokePipelineTarget(url), "floor", WARM_UP_CALLS)
        outcome = await run_calls(
            at, InvokeJob(InvokePipelineTarget(url), "async", calls, ASYNC_CONCURRENCY, payload=PAYLOAD)
        )
        return WarmMeasurement(0, calls / (await wait_until_empty(url) - outcome.started_at), sync, busy)


async def measure_sync(
    at: ServerlessStack, contender: InvokeAPITarget | InvokePipelineTarget, name: str, warm_up: int
) -> tuple[list[float], list[float]]:
    """One call after the other, and eight at a time. Each function is called before it counts."""

    async def seconds(what: str, calls: int, callers: int) -> list[float]:
        job = InvokeJob(contender, f"{what}-{name}", calls, callers, sync=True, payload=PAYLOAD)
        return sorted((await run_calls(at, job)).latency_seconds)

    await seconds("warm-up", warm_up, 8)
    return await seconds("sync", SYNC_CALL_COUNT, 1), await seconds("busy", SYNC_CALL_COUNT, 8)


async def run_calls(at: ServerlessStack, job: InvokeJob) -> InvokeLoadResult:
    outcome = await run_invoke_load(job, at.folder)
    if outcome.errors:
        raise RuntimeError(outcome.errors[0])
    return outcome


async def measure_cold_starts(at: ServerlessStack, count: int) -> ColdStartMeasurement:
    """One function alone is woken up several times, each time another; many are woken up at once, once."""
    log_progress(f"{count} cold")
    found = ColdStartMeasurement(count, [], [])
    for turn in range(COLD_START_REPEATS if count == 1 else 1):
        names = [f"cold{count}x{turn}x{number}" for number in range(count)]
        found.pod_seconds += await measure_cold_calls(at, names)
        found.floor_pod_seconds += await cold_start.measure_pod_starts(at.kube, names)
    return ColdStartMeasurement(count, sorted(found.pod_seconds), sorted(found.floor_pod_seconds))


async def measure_cold_calls(at: ServerlessStack, names: list[str]) -> list[float]:
    """The functions are known to everybody before."""
    await create_functions(at, names, running=False)
    await asyncio.sleep(1)
    contender, seen = InvokeAPITarget(at.runtime_api.url, API_TOKEN, names), dict[str, float]()
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(record_first_pods(at.kube, INSTANCE_NAMESPACE, names, _function_of, seen))
        outcome = await run_calls(at, InvokeJob(contender, names[0], len(names), len(names), payload=PAYLOAD))
    return [moment - outcome.started_at for moment in seen.values()]


def _function_of(labels: dict[str, str]) -> str:
    """A worker is named after its function, and something."""
    return labels.get(Label.UNIT, "").rpartition("-")[0]


def rows(found: InvokeDetails) -> list[Row]:
    return [
        *(row for warm in found.warm for row in _warm_rows(warm, found.floor, has_target=warm is found.warm[0])),
        *(row for cold in found.cold for row in _cold_rows(cold, has_target=cold is found.cold[0])),
        *(_cpu_row(process, found.warm) for process in found.warm[0].cpu_milliseconds),
    ]


def _warm_rows(warm: WarmMeasurement, floor: WarmMeasurement, *, has_target: bool) -> list[Row]:
    who, rate, p50 = _function_count_label(warm.functions), warm.calls_per_second, quantile(warm.sync_seconds, 0.5)
    rows = [
        Row(f"{who}: asynchronous calls per second until stored", rate, "", floor.calls_per_second),
        _time_row(f"{who}: synchronous call, one at a time: p50", warm.sync_seconds, floor.sync_seconds, 0.5),
        _time_row(f"{who}: synchronous call, one at a time: p99", warm.sync_seconds, floor.sync_seconds, 0.99),
        _time_row(
            f"{who}: synchronous call, eight at a time: p50",
            warm.concurrent_sync_seconds,
            floor.concurrent_sync_seconds,
            0.5,
        ),
    ]
    if has_target:
        rows[0].target, rows[0].missed = f">= {MIN_ASYNC_CALLS_PER_SECOND}", rate < MIN_ASYNC_CALLS_PER_SECOND
        rows[1].target, rows[1].missed = f"{1000 * MAX_SYNC_P50_SECONDS:g} ms", p50 > MAX_SYNC_P50_SECONDS
    return rows


def _cold_rows(cold: ColdStartMeasurement, *, has_target: bool) -> list[Row]:
    who = f"{_function_count_label(cold.functions)} called at once, until the first worker's pod"
    rows = [
        _time_row(f"{who}: p50", cold.pod_seconds, cold.floor_pod_seconds, 0.5),
        _time_row(f"{who}: longest", cold.pod_seconds, cold.floor_pod_seconds, 1),
    ]
    if has_target:
        rows[0].target, rows[0].missed = (
            f"{1000 * MAX_COLD_START_SECONDS:g} ms",
            quantile(cold.pod_seconds, 0.5) > MAX_COLD_START_SECONDS,
        )
    return rows


def _time_row(what: str, rising: list[float], floor: list[float], share: float) -> Row:
    return Row(what, 1000 * quantile(rising, share), "ms", 1000 * quantile(floor, share))


def _cpu_row(process: str, warm: Sequence[WarmMeasurement]) -> Row:
    """The most functions beside the fewest: what a call costs must not depend on them."""
    what = f"CPU per asynchronous call of {_function_count_label(warm[-1].functions)}, beside {warm[0].functions}: {process}"
    return Row(what, warm[-1].cpu_milliseconds[process], "ms", warm[0].cpu_milliseconds[process])


def _function_count_label(functions: int) -> str:
    return f"{functions} functions" if functions > 1 else "1 function"


def charts(found: InvokeDetails) -> list[Chart]:
    points, floor, across = [warm.functions for warm in found.warm], found.floor, "functions"
    rates = {
        "until stored": [warm.calls_per_second for warm in found.warm],
        "floor: NATS alone": [floor.calls_per_second] * len(points),
    }
    sync = {
        "p50": [1000 * quantile(warm.sync_seconds, 0.5) for warm in found.warm],
        "p99": [1000 * quantile(warm.sync_seconds, 0.99) for warm in found.warm],
        "floor: NATS alone, p50": [1000 * quantile(floor.sync_seconds, 0.5)] * len(points),
    }
    cold = {
        "p50": [1000 * quantile(cold.pod_seconds, 0.5) for cold in found.cold],
        "longest": [1000 * cold.pod_seconds[-1] for cold in found.cold],
        "floor: bare Deployments, p50": [1000 * quantile(cold.floor_pod_seconds, 0.5) for cold in found.cold],
        "floor: longest": [1000 * cold.floor_pod_seconds[-1] for cold in found.cold],
    }
    return [
        Chart("throughput", "asynchronous calls per second", across, points, rates, MIN_ASYNC_CALLS_PER_SECOND),
        Chart("latency", "synchronous call, one at a time, ms", across, points, sync, 1000 * MAX_SYNC_P50_SECONDS),
        Chart(
            "cold",
            "from a call until the pod, ms",
            "functions called at once",
            points,
            cold,
            1000 * MAX_COLD_START_SECONDS,
        ),
    ]


if __name__ == "__main__":
    main()
