"""Measures whether a handoff (POST /gpu-units) costs more if there is more stock.

    python -m bench.stock_size [--rounds 3]

Two complete stacks run at the same time: one with 200 stock units, and one with 2,000. Each has its own API server,
etcd and runtime API. In each round, the benchmark sends the same number of creates four times: to the small stack,
twice to the large stack, and to the small stack again. So a machine that becomes slower or faster affects both in the
same way. Before each block of creates, the stack gets as many new stock units as the previous block has consumed.

Each block of the large stack is compared with the block of the small stack beside it. The spread of these ratios shows
how much they vary by chance.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import median

import msgspec

from bench.handoff_runs import LoadMeasurement, LoadProfile, measure_profile, seed_stock, wait_until_all_idle
from bench.report import BenchmarkResult, Row, log_progress, report_and_exit
from bench.start_runtime_api import RUNTIME_API_USER, RuntimeAPIReplica, start_runtime_api
from bench.testbed import Testbed, testbed

SMALL_STOCK, LARGE_STOCK = 200, 2000
MAX_RATIO = 1.25
"""How much more a create may cost if there is ten times as much stock."""
CREATES_PER_BLOCK = 60


@dataclass
class StockStack:
    """A control plane and a runtime API with this number of stock units."""

    bed: Testbed
    replica: RuntimeAPIReplica
    profile: LoadProfile

    async def measure_block(self) -> LoadMeasurement:
        await seed_stock(self.bed, self.replica.url, [self.profile])
        await wait_until_all_idle(self.bed, [self.replica])
        measured = await measure_profile(self.bed, self.profile, [self.replica])
        self.profile = msgspec.structs.replace(
            self.profile, first=self.profile.first + self.profile.all_creates, seeds=self.profile.all_creates
        )
        p50, cpu = 1000 * measured.latency_quantile(0.5), 1000 * measured.target_cpu_seconds
        log_progress(f"{self.profile.stock} stock units: p50 {p50:.1f} ms, CPU per create {cpu:.2f} ms")
        return measured


class BlockPair(msgspec.Struct):
    """Two blocks of creates, one after the other: with little stock and with much stock."""

    small: LoadMeasurement
    large: LoadMeasurement


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="rounds of four blocks of creates (default 3)")
    rounds = parser.parse_args().rounds
    report_and_exit("stock-size", lambda: asyncio.run(measure(rounds)))


async def measure(rounds: int) -> BenchmarkResult:
    pairs: list[BlockPair] = []
    async with stock_stack(SMALL_STOCK) as small, stock_stack(LARGE_STOCK) as large:
        for index in range(rounds):
            log_progress(f"round {index + 1} of {rounds}")
            first, second, third, fourth = [await each.measure_block() for each in (small, large, large, small)]
            pairs += [BlockPair(first, second), BlockPair(fourth, third)]
    return BenchmarkResult(rows(pairs), [], pairs)


@asynccontextmanager
async def stock_stack(stock: int) -> AsyncIterator[StockStack]:
    profile = LoadProfile(f"stock-{stock}", CREATES_PER_BLOCK, replicas=1, concurrency=1, stock=stock)
    async with testbed(1, RUNTIME_API_USER) as bed:
        with start_runtime_api(bed.control_plane, bed.folder, "runtime-api") as replica:
            yield StockStack(bed, replica, profile)


def rows(pairs: list[BlockPair]) -> list[Row]:
    return [
        *_figure_rows("HTTP p50", pairs, lambda each: each.latency_quantile(0.5)),
        *_figure_rows("HTTP p95", pairs, lambda each: each.latency_quantile(0.95), has_target=False),
        *_figure_rows("CPU per create", pairs, lambda each: each.target_cpu_seconds),
        *_figure_rows("the API server's CPU per create", pairs, lambda each: each.api_server_cpu_seconds),
    ]


def _figure_rows(
    name: str, pairs: list[BlockPair], figure: Callable[[LoadMeasurement], float], *, has_target: bool = True
) -> list[Row]:
    """The medians with much stock and, as the floor, with little stock, and the range of the ratios of the pairs."""
    small, large = median(figure(each.small) for each in pairs), median(figure(each.large) for each in pairs)
    ratios = [figure(each.large) / figure(each.small) for each in pairs]
    target = f"ratio {MAX_RATIO}" if has_target else ""
    missed = has_target and large > MAX_RATIO * small
    return [
        Row(f"{LARGE_STOCK} stock units: {name}", 1000 * large, "ms", 1000 * small, target, missed),
        Row("    smallest ratio of two neighboring blocks", min(ratios)),
        Row("    median of these ratios", median(ratios)),
        Row("    largest ratio", max(ratios)),
    ]


if __name__ == "__main__":
    main()
