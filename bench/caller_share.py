"""Measures whether a caller that sends 20 times its rate limit slows down another caller.

    python -m bench.caller_share [--rounds 3] [--seconds 8]

All processes are real, and the limits are the default limits. The flooding caller creates units for which there is no
stock, and invokes a function. The measured caller creates units from stock, reads a unit, and sends synchronous calls.
Windows without and with the flood alternate.

Before, both callers create units and delete them. The benchmark changes the end of these operations to an hour ago, and
lowers the maximum number of operations. So the runtime API must evict operations during the run. All operations that it
evicts must belong to the flooding caller. The function of the flooding caller also exceeds its number of dead letters.
"""

import argparse
import asyncio
from datetime import UTC, datetime, timedelta

import aiohttp
import msgspec

from bench.create_load import CreateAPITarget, CreateJob, run_create_load
from bench.flood_load import FloodJob
from bench.floors.handoff_writes import STOCK_PATH
from bench.function_share import TOPOLOGY
from bench.invoke_load import InvokeAPITarget, InvokeJob, run_invoke_load
from bench.load_windows import RequestTemplate, call_template, create_template, mirrored_windows
from bench.paced_load import PacedJob
from bench.report import BenchmarkResult, Row, log_progress, report_and_exit
from bench.serverless_stack import ServerlessStack, create_functions, serverless_stack, start_workers
from bench.start_runtime_api import API_TOKEN, FLOOD_TOKEN
from bench.testbed import wait_until_all_ready
from bench.window_figures import WindowMeasurement, measure_windows
from gpu_runtime.contract.crd.well_known import operation_name
from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.jetstream.connection import connect_nats
from gpu_runtime.jetstream.connection_options import ConnectionOptions
from gpu_runtime.jetstream.stream_admin import messages_by_subject

MEASURED, FLOODING = "measured", "flooding"
"""The names of the two functions."""
QUIET, FLOODED = "quiet", "flooded"
RATE_LIMIT, FLOOD_FACTOR = 50, 20
MEASURED_PER_SECOND = 15
MAX_P50_RATIO, MAX_P99_RATIO = 1.5, 3.0
FLAVOR, GPUS = "measured", 1000
OPERATIONS = 30
"""The finished operations of each caller before the flood."""
MAX_RETAINED = 100
MEASURED_DEAD_LETTERS, FLOODING_DEAD_LETTERS = 40, 220
OPERATIONS_PATH = "/apis/runtime.lokiwager.io/v1alpha1/namespaces/runtime-system/operations"
EVICTED_METRIC = 'gpu_runtime_operations_evicted_total{reason="count"}'


class CallerShareDetails(msgspec.Struct):
    measured: WindowMeasurement
    evicted_operations: int
    """The operations that the runtime API evicted because there were too many."""
    lost_operations: int
    """The operations of the measured caller that the runtime API evicted."""
    lost_dead_letters: int


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="rounds of four windows (default 3)")
    parser.add_argument("--seconds", type=float, default=8, help="the length of a window (default 8)")
    options = parser.parse_args()
    report_and_exit("caller-share", lambda: asyncio.run(measure(options.rounds, options.seconds)))


async def measure(rounds: int, seconds: float) -> BenchmarkResult:
    settings = {"limits": {}, "operations": {"maxRetained": MAX_RETAINED}}
    async with serverless_stack(GPUS, api_settings=settings) as stack:
        await create_functions(stack, [MEASURED, FLOODING], running=True)
        with start_workers(stack, [MEASURED, FLOODING]):
            await seed_stock(stack, 2 * OPERATIONS + int(4 * rounds * seconds * MEASURED_PER_SECOND / 5) + 20)
            for token, name in ((API_TOKEN, MEASURED), (FLOOD_TOKEN, FLOODING)):
                await finish_operations(stack, token, name)
            await dead_letter(stack, API_TOKEN, MEASURED, MEASURED_DEAD_LETTERS)
            await dead_letter(stack, FLOOD_TOKEN, FLOODING, FLOODING_DEAD_LETTERS)
            measured = await measure_flood(stack, rounds, seconds)
            details = await check_evictions(stack, measured)
    return BenchmarkResult(rows(details), [], details)


async def seed_stock(stack: ServerlessStack, count: int) -> None:
    log_progress(f"{count} stock units")
    body = {"operationID": "seed", "specName": FLAVOR, "replicas": count, "memory": "1Gi", "gpu": 1}
    async with client(stack, API_TOKEN) as session, session.post("/api/v1/operator/stock-units", json=body) as response:
        response.raise_for_status()
    async with asyncio.timeout(120):
        await wait_until_all_ready(stack.kube, STOCK_PATH, count)


async def finish_operations(stack: ServerlessStack, token: str, prefix: str) -> None:
    """Create and delete units, and let their operations end an hour ago."""
    log_progress(f"finished operations of the caller {prefix}")
    requests = [create_request(prefix, number) for number in range(OPERATIONS)]
    job = CreateJob(CreateAPITarget([stack.runtime_api.url], token), requests, concurrency=4)
    created = await run_create_load(job, stack.folder)
    if errors := [each.error for each in created.creates if each.error]:
        raise RuntimeError(errors[0])
    ended = {"status": {"finishedAt": f"{datetime.now(UTC) - timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"}}
    async with client(stack, token) as session:
        for request in requests:
            async with session.delete(f"/api/v1/gpu-units/{request['name']}") as response:
                response.raise_for_status()
            await stack.kube.patch(f"{OPERATIONS_PATH}/{operation_name(request['operationID'])}/status", ended)
            await asyncio.sleep(1 / RATE_LIMIT)


def create_request(prefix: str, number: int) -> dict[str, str]:
    name = f"{prefix}-finished-{number}"
    return {"operationID": f"create-{name}", "name": name, "specName": FLAVOR, "image": "python:3.12"}


async def dead_letter(stack: ServerlessStack, token: str, function: str, count: int) -> None:
    log_progress(f"dead letters of the function {function}")
    target, stored = InvokeAPITarget(stack.runtime_api.url, token, [function]), stack.stored_count()
    for first in range(0, count, 20):
        job = InvokeJob(target, f"letter-{function}-{first}", 20, 4, payload={"fail": True})
        if errors := (await run_invoke_load(job, stack.folder)).errors:
            raise RuntimeError(errors[0])
    await stack.wait_until_stored(stored + count, 60)


async def measure_flood(stack: ServerlessStack, rounds: int, seconds: float) -> WindowMeasurement:
    url = stack.runtime_api.url
    windows = mirrored_windows([(QUIET, url), (FLOODED, url)], rounds, seconds)
    sync = call_template("measured-@N@", MEASURED, {"prompt": "draw a robot"}, "sync")
    read = RequestTemplate("read", "GET", f"/api/v1/gpu-units/{MEASURED}")
    requests = [sync, read, create_template("measured-@N@", FLAVOR), sync, read]
    calls = PacedJob(API_TOKEN, requests, MEASURED_PER_SECOND, windows)
    flood_requests = [
        create_template("flood-@N@", "no-stock"),
        call_template("flood-@N@", FLOODING, {"prompt": "draw a robot"}, "async"),
    ]
    flooded = [each for each in windows if each.kind == FLOODED]
    flood = FloodJob(url, FLOOD_TOKEN, flood_requests, FLOOD_FACTOR * RATE_LIMIT, flooded)
    return await measure_windows(stack, calls, flood, stack.folder)


async def check_evictions(stack: ServerlessStack, measured: WindowMeasurement) -> CallerShareDetails:
    log_progress("eviction of operations")
    async with asyncio.timeout(120):
        while not (evicted := stack.runtime_api.process.metric_sum(EVICTED_METRIC)):  # noqa: ASYNC110 - another process
            await asyncio.sleep(1)
    lost = 0
    async with client(stack, API_TOKEN) as session:
        for number in range(OPERATIONS):
            async with session.post("/api/v1/gpu-units", json=create_request(MEASURED, number)) as response:
                lost += response.status != 410  # Gone: the operation exists, and its unit is deleted
    async with connect_nats(ConnectionOptions((stack.nats_url,), "bench")) as nats:
        subject = TOPOLOGY.subjects.dead_letter(Stream.DISPATCH, stack.function_ids[MEASURED])
        letters = await messages_by_subject(nats, TOPOLOGY.dead_letter_stream.name, subject)
    return CallerShareDetails(measured, int(evicted), lost, MEASURED_DEAD_LETTERS - sum(letters.values()))


def client(stack: ServerlessStack, token: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(stack.runtime_api.url, headers={"Authorization": f"Bearer {token}"})


def rows(details: CallerShareDetails) -> list[Row]:
    measured, kinds = details.measured, (FLOODED, QUIET)
    quantiles = (("p50", 0.5, MAX_P50_RATIO), ("p99", 0.99, MAX_P99_RATIO))
    lost = (("operations", details.lost_operations), ("dead letters", details.lost_dead_letters))
    return [
        *(
            measured.ratio_row(f"{name}: {label}", kinds, share, max_ratio, name)
            for name in ("sync", "read", "create")
            for label, share, max_ratio in quantiles
        ),
        *measured.status_rows(),
        Row("evicted operations of the flooding caller", details.evicted_operations - details.lost_operations),
        *(Row(f"evicted {what} of the measured caller", count, target="0", missed=count > 0) for what, count in lost),
        *measured.flood_rows(),
        *measured.cpu_rows(kinds),
    ]


if __name__ == "__main__":
    main()
