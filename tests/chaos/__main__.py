"""Injects faults into the system under load, in rounds, and checks all invariants after each round.

    python -m tests.chaos --minutes 5 --seed 7 [--round 3]

The seed decides the faults, the times of the faults, and the requests. The interleaving of the processes is not
deterministic.
"""

import argparse
import random
import shutil
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import count

import uvloop
from lightkube import AsyncClient, KubeConfig

from gpu_runtime.contract.stock_grades import StockGrade
from localcluster.errors import MissingRequirement
from localcluster.paths import LOCAL_STATE_DIR
from tests.chaos.chaos_round import ChaosRound, InvariantViolated
from tests.chaos.fake_kubelet import FakeKubelet, running_kubelet
from tests.chaos.fault_injector import FaultInjector
from tests.chaos.fault_schedule import FaultKind, schedule_faults
from tests.chaos.system_under_test import SystemUnderTest, running_system
from tests.chaos.watch_invariants import ClusterWatch, watch_cluster
from tests.integration.runtime_api.live_platform import ClusterReader

ARTIFACTS_DIR = LOCAL_STATE_DIR / "chaos"
MIN_ROUND_SECONDS = 60.0
"""The minimum duration of a round. No round starts if less time remains."""


@dataclass
class ChaosSummary:
    rounds: int = 0
    faults: Counter[FaultKind] = field(default_factory=Counter)
    requests: int = 0
    retries: int = 0
    units: Counter[str] = field(default_factory=Counter)
    """By the grade of their stock."""
    withdrawn: int = 0
    storages: int = 0
    invocations: int = 0
    terminal_states: Counter[str] = field(default_factory=Counter)
    executions: int = 0
    repeated_executions: int = 0
    workers: int = 0
    longest_recovery_seconds: float = 0

    def add(self, chaos_round: ChaosRound) -> None:
        history = chaos_round.history
        self.rounds += 1
        self.requests += history.requests
        self.retries += history.retries
        self.units.update(source.grade for unit in history.units.values() if (source := unit.operation.source))
        self.withdrawn += sum(each.confirmed for each in history.withdrawals.values())
        self.storages += len(history.storages)
        self.invocations += len(history.invocations)
        self.terminal_states.update(
            each.terminal_views[0]["state"] for each in history.invocations.values() if each.terminal_views
        )
        self.executions += chaos_round.executions
        self.repeated_executions += chaos_round.repeated_executions
        self.longest_recovery_seconds = max(self.longest_recovery_seconds, chaos_round.recovery_seconds)

    def rows(self) -> Iterator[tuple[str, object]]:
        yield "rounds", self.rounds
        for kind in FaultKind:
            yield f"faults: {kind}", self.faults[kind]
        yield "requests", self.requests
        yield "retried requests", self.retries
        for grade in StockGrade:
            yield f"units created: {grade}", self.units[grade]
        yield "stock units withdrawn", self.withdrawn
        yield "storages created", self.storages
        yield "invocations", self.invocations
        for state, times in sorted(self.terminal_states.items()):
            yield f"invocations: {state}", times
        yield "executions", self.executions
        yield "repeated executions", self.repeated_executions
        yield "workers started", self.workers
        yield "longest recovery", f"{self.longest_recovery_seconds:.1f} s"

    def __str__(self) -> str:
        return "\n".join(f"  {name:<36}{value!s:>10}" for name, value in self.rows())


@dataclass
class ChaosRun:
    platform: SystemUnderTest
    kubelet: FakeKubelet
    cluster_watch: ClusterWatch
    cluster_reader: ClusterReader
    seed: int
    summary: ChaosSummary = field(default_factory=ChaosSummary)

    async def run_round(self, number: int) -> bool:
        """Run a round and return whether all invariants held."""
        print_line(f"round {number} of seed {self.seed}")
        self._truncate_logs()
        faults = FaultInjector(self.platform, self.kubelet, print_line)
        schedule = schedule_faults(self.seed, number)
        chaos_round = ChaosRound(
            self.platform,
            self.kubelet,
            self.cluster_watch,
            self.cluster_reader,
            faults,
            self.seed,
            number,
            schedule,
            print_line,
        )
        try:
            await chaos_round.run()
        except Exception as error:  # noqa: BLE001 - every error is reported with the seed and the logs
            await self._report_violation(chaos_round, failure_text(error))
            return False
        finally:
            self.summary.add(chaos_round)
            self.summary.faults.update(faults.injected_kinds)
            self.summary.workers = self.kubelet.started_count
        print_line(f"        recovered after {chaos_round.recovery_seconds:.1f} s")
        return True

    def _truncate_logs(self) -> None:
        """Delete the log lines of the previous rounds, which were successful."""
        for folder in self.platform.log_dirs.values():
            for log in folder.glob("*.log"):
                with log.open("r+b") as file:
                    file.truncate()

    async def _report_violation(self, chaos_round: ChaosRound, violation: str) -> None:
        folder = ARTIFACTS_DIR / f"seed-{self.seed}-round-{chaos_round.number}"
        shutil.rmtree(folder, ignore_errors=True)
        await chaos_round.save_artifacts(folder)
        repeat_command = f"make chaos SEED={self.seed} ROUND={chaos_round.number}"
        faults = "\n".join(f"  {each}" for each in chaos_round.faults.injected_faults)
        text = (
            f"VIOLATED in round {chaos_round.number} of seed {self.seed}\n{violation}\n\nThe faults:\n{faults}\n\n"
            f"The logs of the round: {folder}\nRepeat the round: {repeat_command}"
        )
        (folder / "violation.txt").write_text(text + "\n")
        print_line(text)


def failure_text(error: BaseException) -> str:
    """Return the messages of the violations, also from an exception group.

    An error without a violation is a defect of the test program and is returned with its traceback.
    """
    if isinstance(error, InvariantViolated):
        return str(error)
    if isinstance(error, BaseExceptionGroup) and (violations := error.subgroup(InvariantViolated)):
        return "\n".join(map(failure_text, violations.exceptions))
    return "".join(traceback.format_exception(error))


def print_line(text: str) -> None:
    print(text, flush=True)


async def run(seed: int, minutes: float, only_round: int | None) -> bool:
    """Run rounds until the time is over, and return whether all invariants held."""
    started_at = time.monotonic()
    async with AsyncExitStack() as stack:
        platform = await stack.enter_async_context(running_system())
        kube = AsyncClient(config=KubeConfig.from_file(platform.control_plane.kubeconfig))
        stack.push_async_callback(kube.close)
        watch = await stack.enter_async_context(watch_cluster(kube))
        kubelet = await stack.enter_async_context(running_kubelet(platform))
        watch.listeners.append(kubelet.sync_pods)
        chaos_run = ChaosRun(platform, kubelet, watch, ClusterReader(kube), seed)
        print_line(f"the platform is up after {time.monotonic() - started_at:.0f} s")
        try:
            for number in [only_round] if only_round else count(1):
                if not await chaos_run.run_round(number):
                    return False
                if time.monotonic() - started_at > 60 * minutes - MIN_ROUND_SECONDS:
                    break
        finally:
            print_line(str(chaos_run.summary))
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5, help="how long rounds are started (default 5)")
    parser.add_argument("--seed", type=int, default=None, help="seed of faults and requests (default: random)")
    parser.add_argument("--round", type=int, default=None, help="run only the round with this number")
    options = parser.parse_args()
    seed = random.randrange(10**6) if options.seed is None else options.seed  # noqa: S311
    print_line(f"seed {seed}: repeat with make chaos MINUTES={options.minutes:g} SEED={seed}")
    try:
        all_held = uvloop.run(run(seed, options.minutes, options.round))
    except MissingRequirement as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
    if not all_held:
        sys.exit(1)
    print_line(f"seed {seed}: all invariants held")


if __name__ == "__main__":
    main()
