"""Measures an authenticated caller while other clients keep half-open connections and send requests without a token.

    python -m bench.connection_flood [--rounds 3] [--seconds 10]

The runtime API, NATS, the API server and all other processes are real. The flood comes from the address of the measured
caller, so both are one peer for the limits of connections. Half of the requests of the measured caller use new
connections. Windows without and with the flood alternate.
"""

import argparse
import asyncio

from bench.flood_load import FloodJob
from bench.load_windows import RequestTemplate, call_template, mirrored_windows
from bench.paced_load import PacedJob
from bench.report import BenchmarkResult, Row, report_and_exit
from bench.serverless_stack import ServerlessStack, create_functions, serverless_stack, start_workers
from bench.start_runtime_api import API_TOKEN
from bench.window_figures import WindowMeasurement, measure_windows

FUNCTION = "measured"
QUIET, FLOODED = "quiet", "flooded"
HALF_OPEN_CONNECTIONS, ANONYMOUS_PER_SECOND, CALLS_PER_SECOND = 2000, 200, 20
MAX_P99_SECONDS = 1.0
SETTLE_SECONDS = 3.0
"""In this time, the flood opens its connections."""
ANONYMOUS_PATHS = ("/swagger/swagger-ui-bundle.js", "/openapi.json", "/api/v1/gpu-units", "/nothing", "/healthz")
API_LIMITS: dict[str, object] = {}
"""The default limits of requests and connections."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="rounds of four windows (default 3)")
    parser.add_argument("--seconds", type=float, default=10, help="the length of a window (default 10)")
    options = parser.parse_args()
    report_and_exit("connection-flood", lambda: asyncio.run(measure(options.rounds, options.seconds)))


async def measure(rounds: int, seconds: float) -> BenchmarkResult:
    async with serverless_stack(api_settings={"limits": API_LIMITS}) as stack:
        await create_functions(stack, [FUNCTION], running=True)
        with start_workers(stack, [FUNCTION]):
            measured = await measure_flood(stack, rounds, seconds)
    return BenchmarkResult(rows(measured), [], measured)


async def measure_flood(stack: ServerlessStack, rounds: int, seconds: float) -> WindowMeasurement:
    url = stack.runtime_api.url
    windows = mirrored_windows([(QUIET, url), (FLOODED, url)], rounds, seconds)
    requests = [
        call_template("measured-@N@", FUNCTION, {"prompt": "draw a robot"}, "sync"),
        RequestTemplate("read", "GET", f"/api/v1/gpu-units/{FUNCTION}"),
        RequestTemplate("list", "GET", f"/api/v1/serverless/invocations?serverlessRequestID={FUNCTION}&limit=20"),
    ]
    calls = PacedJob(API_TOKEN, requests, CALLS_PER_SECOND, windows, SETTLE_SECONDS, alternate_connections=True)
    anonymous = [RequestTemplate(path, "GET", path) for path in ANONYMOUS_PATHS]
    flooded = [each for each in windows if each.kind == FLOODED]
    flood = FloodJob(url, "", anonymous, ANONYMOUS_PER_SECOND, flooded, HALF_OPEN_CONNECTIONS)
    return await measure_windows(stack, calls, flood, stack.folder)


def rows(measured: WindowMeasurement) -> list[Row]:
    kinds, p99 = (FLOODED, QUIET), measured.latency_quantile(FLOODED, 0.99)
    all_p99 = measured.ratio_row("all requests: p99", kinds, 0.99, None)
    all_p99.target, all_p99.missed = f"{MAX_P99_SECONDS:g} s", p99 >= MAX_P99_SECONDS
    names = dict.fromkeys(each.name for each in measured.calls.samples)
    return [
        all_p99,
        measured.ratio_row("all requests: longest", kinds, 1, None),
        *(
            measured.ratio_row(f"{name}: {label}", kinds, share, None, name)
            for name in names
            for label, share in (("p50", 0.5), ("p99", 0.99))
        ),
        *measured.status_rows(),
        *measured.flood_rows(),
        Row(
            "flood: half-open connections at the end of a window",
            min(each.open_half_open for each in measured.flood.windows),
        ),
        *measured.cpu_rows(kinds),
    ]


if __name__ == "__main__":
    main()
