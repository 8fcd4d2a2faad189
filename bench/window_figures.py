"""Runs the measured caller and a flood in alternating windows, and computes the figures of each kind of window."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.flood_load import FloodJob, FloodResult
from bench.load_windows import Window, run_generator, sleep_until
from bench.paced_load import PacedJob, PacedResult, PacedSample
from bench.report import Row, log_progress, quantile
from bench.serverless_stack import ServerlessStack


class WindowMeasurement(msgspec.Struct):
    windows: list[Window]
    calls: PacedResult
    flood: FloodResult
    flooded_seconds: float
    cpu_seconds: list[dict[str, float]]
    """The CPU time of each process of the flooded stack, by window."""

    def samples(self, kind: str, name: str | None = None) -> list[PacedSample]:
        """Return the requests of this name in the windows of this kind."""
        return [
            each for each in self.calls.samples if self.windows[each.window].kind == kind and name in (None, each.name)
        ]

    def latency_quantile(self, kind: str, share: float, name: str | None = None) -> float:
        return quantile(sorted(each.latency_seconds for each in self.samples(kind, name)), share)

    def ratio_row(
        self, label: str, kinds: tuple[str, str], share: float, max_ratio: float | None, name: str | None = None
    ) -> Row:
        """Compare a quantile in the windows of the first kind with the quantile in those of the second kind."""
        value, floor = (1000 * self.latency_quantile(kind, share, name) for kind in kinds)
        target = f"ratio {max_ratio:g}" if max_ratio else ""
        return Row(label, value, "ms", floor, target, bool(max_ratio and value > max_ratio * floor))

    def status_rows(self) -> list[Row]:
        statuses = Counter(each.status for each in self.calls.samples)
        refused, failed = statuses[429], sum(n for status, n in statuses.items() if not 200 <= status < 300)
        return [
            Row("requests of the measured caller", statuses.total()),
            Row("    with the status 429", refused, target="0", missed=refused > 0),
            Row("    with another error, or without a response", failed - refused, target="0", missed=failed > refused),
        ]

    def flood_rows(self) -> list[Row]:
        statuses, wall = self.flood.statuses(), sum(each.seconds for each in self.windows)
        return [
            *(
                Row(f"flood: responses per second with the status {status}", count / self.flooded_seconds)
                for status, count in sorted(statuses.items())
            ),
            Row(
                "flood: requests per second that found no free connection",
                sum(each.unsent for each in self.flood.windows) / self.flooded_seconds,
            ),
            Row(
                "CPU of the flooding client, part of a core",
                sum(each.cpu_seconds for each in self.flood.windows) / self.flooded_seconds,
            ),
            Row("CPU of the measured caller, part of a core", sum(self.calls.cpu_seconds) / wall),
        ]

    def cpu_rows(self, kinds: tuple[str, str]) -> list[Row]:
        """Compare the CPU use of each process in the windows of the two kinds, as part of a core."""
        return [Row(f"CPU of {name}, part of a core", *self._cpu_shares(name, kinds)) for name in self.cpu_seconds[0]]

    def _cpu_shares(self, name: str, kinds: tuple[str, str]) -> tuple[float, str, float]:
        def share(kind: str) -> float:
            indexes = [index for index, window in enumerate(self.windows) if window.kind == kind]
            seconds = sum(self.windows[index].seconds for index in indexes)
            return sum(self.cpu_seconds[index][name] for index in indexes) / seconds

        return share(kinds[0]), "", share(kinds[1])


async def measure_windows(stack: ServerlessStack, calls: PacedJob, flood: FloodJob, folder: Path) -> WindowMeasurement:
    log_progress(f"{len(calls.windows)} windows of {calls.windows[0].seconds:g} s")
    async with asyncio.TaskGroup() as tasks:
        caller = tasks.create_task(run_generator("bench.paced_load", calls, PacedResult, folder, "caller"))
        flooding = tasks.create_task(run_generator("bench.flood_load", flood, FloodResult, folder, "flood"))
        cpu = tasks.create_task(_cpu_by_window(stack, calls.windows))
    seconds = sum(each.seconds for each in flood.windows)
    return WindowMeasurement(calls.windows, caller.result(), flooding.result(), seconds, cpu.result())


async def _cpu_by_window(stack: ServerlessStack, windows: Sequence[Window]) -> list[dict[str, float]]:
    used = []
    for window in windows:
        await sleep_until(window.starts_at)
        before = stack.cpu_seconds()
        await sleep_until(window.ends_at)
        used.append({name: cpu - before[name] for name, cpu in stack.cpu_seconds().items()})
    return used
