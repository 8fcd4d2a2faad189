"""Faults under load, round after round, and after each of them the truth.

    python -m tests.chaos --minutes 5 --seed 7 [--round 3]

What happens is a function of the seed, as far as that goes: the same faults at the same times and the same requests.
How processes interleave with them is not.
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
"""Seconds that a round takes at least: none begins that has not so many left."""


@dataclass
class ChaosSummary:
    rounds: int = 0
    faults: Counter[FaultKind] = field(default_factory=Counter)
    requests: int = 0
    retries: int = 0
    units: int = 0
    storages: int = 0
    invocations: int = 0
    terminal_states: Counter[str] = field(default_factory=Counter)
    executions: int = 0
    repeated_executions: int = 0
    workers: int = 0
    longest_recovery_seconds: float = 0

    def add(self, done: ChaosRound) -> None:
        history = done.history
        self.rounds += 1
        self.requests += history.requests
        self.retries += history.retries
        self.units += sum(unit.operation.succeeded for unit in history.units.values())
        self.storages += len(history.storages)
        self.invocations += len(history.invocations)
        self.terminal_states.update(
            each.terminal_views[0]["state"] for each in history.invocations.values() if each.terminal_views
        )
        self.executions += done.executions
        self.repeated_executions += done.repeated_executions
        self.longest_recovery_seconds = max(self.longest_recovery_seconds, done.recovery_seconds)

    def rows(self) -> Iterator[tuple[str, object]]:
        yield "rounds", self.rounds
        for kind in FaultKind:
            yield f"faults: {kind}", self.faults[kind]
        yield "requests", self.requests
        yield "requests sent again", self.retries
        yield "units made", self.units
        yield "storages made", self.storages
        yield "invocations", self.invocations
        for state, times in sorted(self.terminal_states.items()):
            yield f"invocations: {state}", times
        yield "executions", self.executions
        yield "executions of what had run before", self.repeated_executions
        yield "workers started", self.workers
        yield "longest until in order", f"{self.longest_recovery_seconds:.1f} s"

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
        """Whether everything held."""
        print_line(f"round {number} of seed {self.seed}")
        self._truncate_logs()
        faults = FaultInjector(self.platform, self.kubelet, print_line)
        happening = schedule_faults(self.seed, number)
        made = ChaosRound(
            self.platform,
            self.kubelet,
            self.cluster_watch,
            self.cluster_reader,
            faults,
            self.seed,
            number,
            happening,
            print_line,
        )
        try:
            await made.run()
        except Exception as error:  # noqa: BLE001 - whatever it is, the seed and the logs tell of it
            await self._report_violation(made, failure_text(error))
            return False
        finally:
            self.summary.add(made)
            self.summary.faults.update(faults.injected_kinds)
            self.summary.workers = self.kubelet.started_count
        print_line(f"        in order after {made.recovery_seconds:.1f} s")
        return True

    def _truncate_logs(self) -> None:
        """Of rounds that went well nothing is kept."""
        for folder in self.platform.log_dirs.values():
            for log in folder.glob("*.log"):
                with log.open("r+b") as file:
                    file.truncate()

    async def _report_violation(self, made: ChaosRound, found: str) -> None:
        folder = ARTIFACTS_DIR / f"seed-{self.seed}-round-{made.number}"
        shutil.rmtree(folder, ignore_errors=True)
        await made.save_artifacts(folder)
        again = f"make chaos SEED={self.seed} ROUND={made.number}"
        faults = "\n".join(f"  {each}" for each in made.faults.injected_faults)
        text = (
            f"VIOLATED in round {made.number} of seed {self.seed}\n{found}\n\nThe faults:\n{faults}\n\n"
            f"The logs of the round: {folder}\nThe same round again: {again}"
        )
        (folder / "violation.txt").write_text(text + "\n")
        print_line(text)


def failure_text(error: BaseException) -> str:
    """A violation says it itself, also where it comes out of a group of tasks. Anything else is ours to mend."""
    if isinstance(error, InvariantViolated):
        return str(error)
    if isinstance(error, BaseExceptionGroup) and (found := error.subgroup(InvariantViolated)):
        return "\n".join(map(failure_text, found.exceptions))
    return "".join(traceback.format_exception(error))


def print_line(text: str) -> None:
    print(text, flush=True)


async def run(seed: int, minutes: float, only: int | None) -> bool:
    """Whether everything held."""
    began = time.monotonic()
    async with AsyncExitStack() as stack:
        platform = await stack.enter_async_context(running_system())
        kube = AsyncClient(config=KubeConfig.from_file(platform.control_plane.kubeconfig))
        stack.push_async_callback(kube.close)
        watch = await stack.enter_async_context(watch_cluster(kube))
        minder = await stack.enter_async_context(running_kubelet(platform))
        watch.listeners.append(minder.sync_pods)
        made = ChaosRun(platform, minder, watch, ClusterReader(kube), seed)
        print_line(f"the platform is up after {time.monotonic() - began:.0f} s")
        try:
            for number in [only] if only else count(1):
                if not await made.run_round(number):
                    return False
                if time.monotonic() - began > 60 * minutes - MIN_ROUND_SECONDS:
                    break
        finally:
            print_line(str(made.summary))
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--round", type=int, default=None, help="only this one")
    options = parser.parse_args()
    seed = random.randrange(10**6) if options.seed is None else options.seed  # noqa: S311
    print_line(f"seed {seed}: the same again with make chaos MINUTES={options.minutes:g} SEED={seed}")
    try:
        held = uvloop.run(run(seed, options.minutes, options.round))
    except MissingRequirement as unmet:
        sys.exit(str(unmet))
    except KeyboardInterrupt:
        sys.exit(130)
    if not held:
        sys.exit(1)
    print_line(f"seed {seed}: everything held")


if __name__ == "__main__":
    main()
