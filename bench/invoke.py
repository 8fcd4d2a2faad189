"""Measures the cost of an invocation and compares it with a plain NATS pipeline of the same hops in the same run.

    python -m bench.invoke [--functions 1 10 100] [--calls 2500]

All processes are real: the runtime API, the activator, the result store, the controller manager, a sidecar and a
framework for each function, a NATS server with file storage, and an API server. A separate process sends the calls over
HTTP to the functions in round-robin order. An asynchronous call is finished when its result is stored in the database.
A synchronous call is finished when its caller has the response.

Cold calls go to functions without a worker: to one function at a time, and to many functions concurrently. They are
measured until the pod of the first worker exists. The floor of cold calls is `bench/floors/cold_start.py`. The floor of
warm calls is `bench/floors/nats_pipeline.py`.
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
"""How many cold starts of a single function are measured."""
MIN_ASYNC_CALLS_PER_SECOND, MAX_SYNC_P50_SECONDS, MAX_COLD_START_SECONDS = 500, 0.007, 0.3


class WarmMeasurement(msgspec.Struct):
    """Latencies and throughput of functions with workers. Lists of latencies are sorted."""

    functions: int
    calls_per_second: float
    sync_seconds: list[float]
    concurrent_sync_seconds: list[float]
    """The latencies of synchronous calls with eight concurrent callers."""
    cpu_milliseconds: dict[str, float] = {}
    """The CPU time per asynchronous call, by process."""


class ColdStartMeasurement(msgspec.Struct):
    """The sorted times from the first call until the first pod of each function."""

    functions: int
    """The number of functions that are called concurrently."""
    pod_seconds: list[float]
    floor_pod_seconds: list[float]


class InvokeDetails(msgspec.Struct):
    floor: WarmMeasurement
    warm: list[WarmMeasurement]
    cold: list[ColdStartMeasurement]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--functions", type=int, nargs="+", default=[1, 10, 100], help="numbers of functions, in ascending order"
    )
    parser.add_argument("--calls", type=int, default=2500, help="number of asynchronous calls")
    options = parser.parse_args()
    report_and_exit("invocation", lambda: asyncio.run(measure(options.functions, options.calls)))


async def measure(functions: Sequence[int], calls: int) -> BenchmarkResult:
    async with serverless_stack() as stack:
        log_progress("the floor")
        floor = await measure_floor(stack, calls)
        warm = await measure_warm(stack, functions, calls)
        await stack.kube.create("/api/v1/namespaces", {"metadata": {"name": cold_start.NAMESPACE}})
        cold = [await measure_cold_starts(stack, count) for count in functions]
    details = InvokeDetails(floor, warm, cold)
    return BenchmarkResult(rows(details), charts(details), details)


async def measure_warm(stack: ServerlessStack, functions: Sequence[int], calls: int) -> list[WarmMeasurement]:
    """Measure with an increasing number of functions. Each function has one worker."""
    measurements, names, workers = [], list[str](), list[WorkerProcesses]()
    with ExitStack() as exit_stack:
        for count in functions:
            log_progress(f"{count} warm")
            new_names = [f"warm{number}" for number in range(len(names), count)]
            await create_functions(stack, new_names, running=True)
            names += new_names
            workers += exit_stack.enter_context(start_workers(stack, new_names))
            measurements.append(await measure_warm_functions(stack, names, workers, calls))
    return measurements


async def measure_warm_functions(
    stack: ServerlessStack, names: list[str], workers: Sequence[WorkerProcesses], calls: int
) -> WarmMeasurement:
    target, name = InvokeAPITarget(stack.runtime_api.url, API_TOKEN, names), f"of-{len(names)}"
    sync, concurrent_sync = await measure_sync(stack, target, name, max(WARM_UP_CALLS, len(names)))
    before, stored = stack.cpu_seconds() | worker_cpu_seconds(workers), stack.stored_count()
    load_result = await run_calls(stack, InvokeJob(target, f"async-{name}", calls, ASYNC_CONCURRENCY, payload=PAYLOAD))
    stored_at = await stack.wait_until_stored(stored + calls, 120)
    after = stack.cpu_seconds() | worker_cpu_seconds(workers)
    cpu_milliseconds = {process: 1000 * (after[process] - cpu) / calls for process, cpu in before.items()}
    return WarmMeasurement(
        len(names), calls / (stored_at - load_result.started_at), sync, concurrent_sync, cpu_milliseconds
    )


async def measure_floor(stack: ServerlessStack, calls: int) -> WarmMeasurement:
    url = stack.nats.create_account().url
    await create_streams(url)
    with start_hops(url):
        sync, concurrent_sync = await measure_sync(stack, InvokePipelineTarget(url), "floor", WARM_UP_CALLS)
        load_result = await run_calls(
            stack, InvokeJob(InvokePipelineTarget(url), "async", calls, ASYNC_CONCURRENCY, payload=PAYLOAD)
        )
        return WarmMeasurement(0, calls / (await wait_until_empty(url) - load_result.started_at), sync, concurrent_sync)


async def measure_sync(
    stack: ServerlessStack, target: InvokeAPITarget | InvokePipelineTarget, name: str, warm_up: int
) -> tuple[list[float], list[float]]:
    """Measure sequential calls, and calls with eight concurrent callers. Each function is called once before."""

    async def sync_seconds(label: str, calls: int, concurrency: int) -> list[float]:
        job = InvokeJob(target, f"{label}-{name}", calls, concurrency, sync=True, payload=PAYLOAD)
        return sorted((await run_calls(stack, job)).latency_seconds)

    await sync_seconds("warm-up", warm_up, 8)
    return await sync_seconds("sync", SYNC_CALL_COUNT, 1), await sync_seconds("concurrent", SYNC_CALL_COUNT, 8)


async def run_calls(stack: ServerlessStack, job: InvokeJob) -> InvokeLoadResult:
    load_result = await run_invoke_load(job, stack.folder)
    if load_result.errors:
        raise RuntimeError(load_result.errors[0])
    return load_result


async def measure_cold_starts(stack: ServerlessStack, count: int) -> ColdStartMeasurement:
    """Measure several cold starts one after the other if `count` is 1, each with a new function. Otherwise measure one
    concurrent cold start of all functions."""
    log_progress(f"{count} cold")
    pod_seconds, floor_pod_seconds = list[float](), list[float]()
    for repeat in range(COLD_START_REPEATS if count == 1 else 1):
        names = [f"cold{count}x{repeat}x{number}" for number in range(count)]
        pod_seconds += await measure_cold_calls(stack, names)
        floor_pod_seconds += await cold_start.measure_pod_starts(stack.kube, names)
    return ColdStartMeasurement(count, sorted(pod_seconds), sorted(floor_pod_seconds))


async def measure_cold_calls(stack: ServerlessStack, names: list[str]) -> list[float]:
    """Create the functions, wait until all caches contain them, and call each function once."""
    await create_functions(stack, names, running=False)
    await asyncio.sleep(1)
    target, seen = InvokeAPITarget(stack.runtime_api.url, API_TOKEN, names), dict[str, float]()
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(record_first_pods(stack.kube, INSTANCE_NAMESPACE, names, _function_of, seen))
        load_result = await run_calls(stack, InvokeJob(target, names[0], len(names), len(names), payload=PAYLOAD))
    return [pod_at - load_result.started_at for pod_at in seen.values()]


def _function_of(labels: dict[str, str]) -> str:
    """Return the function of a worker pod. The name of a worker is the function name with a suffix."""
    return labels.get(Label.UNIT, "").rpartition("-")[0]


def rows(details: InvokeDetails) -> list[Row]:
    return [
        *(row for warm in details.warm for row in _warm_rows(warm, details.floor, has_target=warm is details.warm[0])),
        *(row for cold in details.cold for row in _cold_rows(cold, has_target=cold is details.cold[0])),
        *(_cpu_row(process, details.warm) for process in details.warm[0].cpu_milliseconds),
    ]


def _warm_rows(warm: WarmMeasurement, floor: WarmMeasurement, *, has_target: bool) -> list[Row]:
    label, rate, p50 = _function_count_label(warm.functions), warm.calls_per_second, quantile(warm.sync_seconds, 0.5)
    rows = [
        Row(f"{label}: asynchronous calls per second until stored", rate, "", floor.calls_per_second),
        _time_row(f"{label}: synchronous call, one at a time: p50", warm.sync_seconds, floor.sync_seconds, 0.5),
        _time_row(f"{label}: synchronous call, one at a time: p99", warm.sync_seconds, floor.sync_seconds, 0.99),
        _time_row(
            f"{label}: synchronous call, eight at a time: p50",
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
    label = f"{_function_count_label(cold.functions)} called concurrently, until the first worker's pod"
    rows = [
        _time_row(f"{label}: p50", cold.pod_seconds, cold.floor_pod_seconds, 0.5),
        _time_row(f"{label}: longest", cold.pod_seconds, cold.floor_pod_seconds, 1),
    ]
    if has_target:
        rows[0].target, rows[0].missed = (
            f"{1000 * MAX_COLD_START_SECONDS:g} ms",
            quantile(cold.pod_seconds, 0.5) > MAX_COLD_START_SECONDS,
        )
    return rows


def _time_row(label: str, sorted_seconds: list[float], floor: list[float], share: float) -> Row:
    return Row(label, 1000 * quantile(sorted_seconds, share), "ms", 1000 * quantile(floor, share))


def _cpu_row(process: str, warm: Sequence[WarmMeasurement]) -> Row:
    """Compare the CPU time with the most and the fewest functions. It must not depend on the number of functions."""
    counts = f"{_function_count_label(warm[-1].functions)}, compared with {warm[0].functions}"
    return Row(
        f"CPU per asynchronous call of {counts}: {process}",
        warm[-1].cpu_milliseconds[process],
        "ms",
        warm[0].cpu_milliseconds[process],
    )


def _function_count_label(functions: int) -> str:
    return f"{functions} functions" if functions > 1 else "1 function"


def charts(details: InvokeDetails) -> list[Chart]:
    points, floor, x_label = [warm.functions for warm in details.warm], details.floor, "functions"
    rates = {
        "until stored": [warm.calls_per_second for warm in details.warm],
        "floor: NATS alone": [floor.calls_per_second] * len(points),
    }
    sync = {
        "p50": [1000 * quantile(warm.sync_seconds, 0.5) for warm in details.warm],
        "p99": [1000 * quantile(warm.sync_seconds, 0.99) for warm in details.warm],
        "floor: NATS alone, p50": [1000 * quantile(floor.sync_seconds, 0.5)] * len(points),
    }
    cold = {
        "p50": [1000 * quantile(cold.pod_seconds, 0.5) for cold in details.cold],
        "longest": [1000 * cold.pod_seconds[-1] for cold in details.cold],
        "floor: bare Deployments, p50": [1000 * quantile(cold.floor_pod_seconds, 0.5) for cold in details.cold],
        "floor: longest": [1000 * cold.floor_pod_seconds[-1] for cold in details.cold],
    }
    return [
        Chart("throughput", "asynchronous calls per second", x_label, points, rates, MIN_ASYNC_CALLS_PER_SECOND),
        Chart("latency", "synchronous call, one at a time, ms", x_label, points, sync, 1000 * MAX_SYNC_P50_SECONDS),
        Chart(
            "cold",
            "from a call until the pod, ms",
            "functions called concurrently",
            points,
            cold,
            1000 * MAX_COLD_START_SECONDS,
        ),
    ]


if __name__ == "__main__":
    main()
