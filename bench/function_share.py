"""Measures whether a function that has filled all of its shares slows down another function.

    python -m bench.function_share [--rounds 4] [--seconds 6]

Two stacks run at the same time. Both have the measured function. On the full stack, another function has filled its
shares of the queues, the dead letters, the results and the workers. The measured caller sends synchronous calls to one
stack at a time, in three kinds of windows:

- `empty`: to the empty stack. This is the floor.
- `full`: to the full stack, while the other function gets no requests.
- `flooded`: to the full stack, while 10 requests per second to the other function are refused.

The windows alternate, so other load on the machine affects all of them.
"""

import argparse
import asyncio
from contextlib import ExitStack

import msgspec

from bench.flood_load import FloodJob
from bench.invoke_load import InvokeAPITarget, InvokeJob, run_invoke_load
from bench.load_windows import call_template, mirrored_windows
from bench.paced_load import PacedJob
from bench.report import BenchmarkResult, Row, log_progress, report_and_exit
from bench.serverless_stack import ServerlessStack, create_functions, serverless_stack, start_workers
from bench.start_runtime_api import API_TOKEN, FLOOD_TOKEN
from bench.testbed import units_path
from bench.window_figures import WindowMeasurement, measure_windows
from gpu_runtime.contract.messages.streams import StreamTopology
from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.jetstream.connection import NatsConnection, connect_nats
from gpu_runtime.jetstream.connection_options import ConnectionOptions
from gpu_runtime.jetstream.stream_admin import messages_by_subject, stream_size

MEASURED, FULL = "measured", "full"
"""The names of the two functions."""
EMPTY_WINDOW, FULL_WINDOW, FLOODED_WINDOW = "empty", "full", "flooded"
CALLS_PER_SECOND, REFUSED_PER_SECOND = 20, 10
MAX_RATIO = 1.1
MAX_RESULT_BYTES = 32 * 1024 * 1024
"""The size of the result store, so that the results of one function fill it."""
RESULT_COUNT, RESULT_BODY_BYTES = 320, 128 * 1024
DEAD_LETTER_COUNT, DEAD_LETTER_BODY_BYTES = 240, 128 * 1024
BATCH_SIZE = 40
BODY_BYTES = (400 * 1024, 100 * 1024, 25 * 1024, 6 * 1024, 10)
"""The sizes of the waiting bodies, the largest first, because this order allows the most bytes."""
FULL_MAX_WORKERS = 20
STREAMS = {"maxMessagesPerSubject": 2000, "maxStreamBytes": 512 * 1024 * 1024}
"""A fifth and a quarter of the default limits, so that a run takes only some minutes."""
TOPOLOGY = StreamTopology()


class FullShares(msgspec.Struct):
    """What the other function has filled."""

    waiting_invocations: int
    dispatch_bytes: int
    dead_letters: int
    workers: int


class FunctionShareDetails(msgspec.Struct):
    shares: FullShares
    measured: WindowMeasurement


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4, help="rounds of six windows (default 4)")
    parser.add_argument("--seconds", type=float, default=6, help="the length of a window (default 6)")
    options = parser.parse_args()
    report_and_exit("function-share", lambda: asyncio.run(measure(options.rounds, options.seconds)))


async def measure(rounds: int, seconds: float) -> BenchmarkResult:
    async with (
        serverless_stack(streams=STREAMS) as empty,
        serverless_stack(streams=STREAMS, max_result_bytes=MAX_RESULT_BYTES) as full,
    ):
        for stack in (empty, full):
            await create_functions(stack, [MEASURED], running=True)
        await create_functions(full, [FULL], running=True, max_workers=FULL_MAX_WORKERS)
        with ExitStack() as exit_stack:
            for stack in (empty, full):
                exit_stack.enter_context(start_workers(stack, [MEASURED]))
            shares = await fill_shares(full)
            details = FunctionShareDetails(shares, await measure_calls(empty, full, rounds, seconds))
    return BenchmarkResult(rows(details), [], details)


async def fill_shares(stack: ServerlessStack) -> FullShares:
    with start_workers(stack, [FULL]):
        log_progress("results")
        await invoke_until_stored(stack, "result", RESULT_COUNT, {"body": "x" * RESULT_BODY_BYTES})
        log_progress("dead letters")
        await invoke_until_stored(stack, "letter", DEAD_LETTER_COUNT, {"fail": "x" * DEAD_LETTER_BODY_BYTES})
    await fill_queues(stack)
    log_progress("the other processes finish their work")
    await wait_until_quiet(stack)
    return await read_shares(stack)


async def invoke_until_stored(stack: ServerlessStack, name: str, count: int, payload: object) -> None:
    """Send calls in batches that fit into the share of the function, and wait until the results are stored."""
    for first in range(0, count, BATCH_SIZE):
        stored = stack.stored_count()
        await invoke(stack, f"{name}-{first}", BATCH_SIZE, payload)
        await stack.wait_until_stored(stored + BATCH_SIZE, 60)


async def fill_queues(stack: ServerlessStack) -> None:
    waiting = 0
    for size in BODY_BYTES:
        log_progress(f"waiting invocations of {size} bytes")
        refused: list[str] = []
        for part in range(1000):
            count = 100 if size > 10 else 500
            refused = await invoke(stack, f"wait-{size}-{part}", count, "x" * size, may_be_refused=True)
            waiting += count - len(refused)
            if refused:
                break
    log_progress(f"{waiting} invocations wait")


async def invoke(
    stack: ServerlessStack, name: str, count: int, payload: object, *, may_be_refused: bool = False
) -> list[str]:
    """Send asynchronous calls to the function that fills its shares. Return the refusals."""
    target = InvokeAPITarget(stack.runtime_api.url, FLOOD_TOKEN, [FULL])
    result = await run_invoke_load(
        InvokeJob(target, name, count, 16, payload=payload, timeout_seconds=7200), stack.folder
    )
    unexpected = [each for each in result.errors if not (may_be_refused and each.startswith("429"))]
    if unexpected:
        raise RuntimeError(unexpected[0])
    return result.errors


async def wait_until_quiet(stack: ServerlessStack) -> None:
    """Wait until all processes together use less than 15 % of a core."""
    async with asyncio.timeout(60):
        while True:
            before = sum(stack.cpu_seconds().values())
            await asyncio.sleep(3)
            if sum(stack.cpu_seconds().values()) - before < 3 * 0.15:
                return


async def read_shares(stack: ServerlessStack) -> FullShares:
    function_id = stack.function_ids[FULL]
    async with connect_nats(ConnectionOptions((stack.nats_url,), "bench")) as nats:
        waiting = [
            await _count(nats, TOPOLOGY.stream_name(each), TOPOLOGY.subjects.stream_subject(each, function_id))
            for each in (Stream.INVOKE, Stream.DISPATCH)
        ]
        letters = await _count(
            nats, TOPOLOGY.dead_letter_stream.name, TOPOLOGY.subjects.dead_letter(Stream.DISPATCH, function_id)
        )
        size = (await stream_size(nats, TOPOLOGY.stream_name(Stream.DISPATCH))).used_bytes
    units = await stack.kube.get(units_path("runtime-instance"))
    workers = [each for each in units["items"] if each["spec"].get("serverless", {}).get("workerOf") == FULL]
    return FullShares(sum(waiting), size, letters, len(workers))


async def _count(nats: NatsConnection, stream: str, subject: str) -> int:
    return sum((await messages_by_subject(nats, stream, subject)).values())


async def measure_calls(
    empty: ServerlessStack, full: ServerlessStack, rounds: int, seconds: float
) -> WindowMeasurement:
    empty_url, full_url = empty.runtime_api.url, full.runtime_api.url
    kinds = [(EMPTY_WINDOW, empty_url), (FULL_WINDOW, full_url), (FLOODED_WINDOW, full_url)]
    windows = mirrored_windows(kinds, rounds, seconds)
    call = call_template("measured-@N@", MEASURED, {"prompt": "draw a robot"}, "sync")
    bodies = ("x" * BODY_BYTES[0], "x" * BODY_BYTES[-1])
    refused = [call_template(f"refused-{len(body)}-@N@", FULL, body, "async") for body in bodies]
    flooded = [each for each in windows if each.kind == FLOODED_WINDOW]
    calls = PacedJob(API_TOKEN, [call], CALLS_PER_SECOND, windows)
    flood = FloodJob(full_url, FLOOD_TOKEN, refused, REFUSED_PER_SECOND, flooded)
    return await measure_windows(full, calls, flood, full.folder)


def rows(details: FunctionShareDetails) -> list[Row]:
    measured, shares = details.measured, details.shares
    flooded, full = (FLOODED_WINDOW, EMPTY_WINDOW), (FULL_WINDOW, EMPTY_WINDOW)
    refused = measured.flood.statuses()
    accepted = refused.total() - refused[429]
    return [
        measured.ratio_row("full shares and refused requests: p50", flooded, 0.5, MAX_RATIO),
        measured.ratio_row("full shares and refused requests: p99", flooded, 0.99, None),
        measured.ratio_row("full shares: p50", full, 0.5, None),
        *measured.status_rows(),
        *measured.flood_rows(),
        Row("flood: responses that were not 429", accepted, target="0", missed=accepted > 0),
        *measured.cpu_rows(flooded),
        Row("waiting invocations of the full function", shares.waiting_invocations),
        Row("their size", shares.dispatch_bytes / 1024**2, "MiB"),
        Row("dead letters of the full function", shares.dead_letters),
        Row("workers of the full function", shares.workers),
    ]


if __name__ == "__main__":
    main()
