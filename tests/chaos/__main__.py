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

from localcluster.errors import Unmet
from localcluster.paths import LOCAL
from tests.chaos.faults import Faults
from tests.chaos.kubelet import Kubelet, kubelet
from tests.chaos.plan import Kind, plan
from tests.chaos.platform import Platform, running_platform
from tests.chaos.rounds import Round, Violated
from tests.chaos.watching import Watch, watching
from tests.integration.runtime_api.live import Eyes

KEPT = LOCAL / "chaos"
ROUND = 60.0
"""Seconds that a round takes at least: none begins that has not so many left."""


@dataclass
class Tally:
    rounds: int = 0
    faults: Counter[Kind] = field(default_factory=Counter)
    requests: int = 0
    again: int = 0
    units: int = 0
    storages: int = 0
    invocations: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    executions: int = 0
    twice: int = 0
    workers: int = 0
    longest: float = 0

    def add(self, done: Round) -> None:
        history = done.history
        self.rounds += 1
        self.requests += history.requests
        self.again += history.again
        self.units += sum(unit.operation.succeeded for unit in history.units.values())
        self.storages += len(history.storages)
        self.invocations += len(history.invocations)
        self.ends.update(each.ends[0]["state"] for each in history.invocations.values() if each.ends)
        self.executions += done.executions
        self.twice += done.again
        self.longest = max(self.longest, done.settled)

    def rows(self) -> Iterator[tuple[str, object]]:
        yield "rounds", self.rounds
        for kind in Kind:
            yield f"faults: {kind}", self.faults[kind]
        yield "requests", self.requests
        yield "requests sent again", self.again
        yield "units made", self.units
        yield "storages made", self.storages
        yield "invocations", self.invocations
        for state, times in sorted(self.ends.items()):
            yield f"invocations: {state}", times
        yield "executions", self.executions
        yield "executions of what had run before", self.twice
        yield "workers started", self.workers
        yield "longest until in order", f"{self.longest:.1f} s"

    def __str__(self) -> str:
        return "\n".join(f"  {name:<36}{value!s:>10}" for name, value in self.rows())


@dataclass
class Run:
    platform: Platform
    kubelet: Kubelet
    watch: Watch
    eyes: Eyes
    seed: int
    tally: Tally = field(default_factory=Tally)

    async def round(self, number: int) -> bool:
        """Whether everything held."""
        say(f"round {number} of seed {self.seed}")
        self._forget_logs()
        faults = Faults(self.platform, self.kubelet, say)
        happening = plan(self.seed, number)
        made = Round(self.platform, self.kubelet, self.watch, self.eyes, faults, self.seed, number, happening, say)
        try:
            await made.run()
        except Exception as error:  # noqa: BLE001 - whatever it is, the seed and the logs tell of it
            await self._explain(made, what_was_wrong(error))
            return False
        finally:
            self.tally.add(made)
            self.tally.faults.update(faults.kinds)
            self.tally.workers = self.kubelet.started
        say(f"        in order after {made.settled:.1f} s")
        return True

    def _forget_logs(self) -> None:
        """Of rounds that went well nothing is kept."""
        for folder in self.platform.logs.values():
            for log in folder.glob("*.log"):
                with log.open("r+b") as file:
                    file.truncate()

    async def _explain(self, made: Round, found: str) -> None:
        folder = KEPT / f"seed-{self.seed}-round-{made.number}"
        shutil.rmtree(folder, ignore_errors=True)
        await made.keep(folder)
        again = f"make chaos SEED={self.seed} ROUND={made.number}"
        faults = "\n".join(f"  {each}" for each in made.faults.told)
        text = (
            f"VIOLATED in round {made.number} of seed {self.seed}\n{found}\n\nThe faults:\n{faults}\n\n"
            f"The logs of the round: {folder}\nThe same round again: {again}"
        )
        (folder / "violation.txt").write_text(text + "\n")
        say(text)


def what_was_wrong(error: BaseException) -> str:
    """A violation says it itself, also where it comes out of a group of tasks. Anything else is ours to mend."""
    if isinstance(error, Violated):
        return str(error)
    if isinstance(error, BaseExceptionGroup) and (found := error.subgroup(Violated)):
        return "\n".join(map(what_was_wrong, found.exceptions))
    return "".join(traceback.format_exception(error))


def say(text: str) -> None:
    print(text, flush=True)


async def run(seed: int, minutes: float, only: int | None) -> bool:
    """Whether everything held."""
    began = time.monotonic()
    async with AsyncExitStack() as stack:
        platform = await stack.enter_async_context(running_platform())
        kube = AsyncClient(config=KubeConfig.from_file(platform.plane.kubeconfig))
        stack.push_async_callback(kube.close)
        watch = await stack.enter_async_context(watching(kube))
        minder = await stack.enter_async_context(kubelet(platform))
        watch.listeners.append(minder.see)
        made = Run(platform, minder, watch, Eyes(kube), seed)
        say(f"the platform is up after {time.monotonic() - began:.0f} s")
        try:
            for number in [only] if only else count(1):
                if not await made.round(number):
                    return False
                if time.monotonic() - began > 60 * minutes - ROUND:
                    break
        finally:
            say(str(made.tally))
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--round", type=int, default=None, help="only this one")
    options = parser.parse_args()
    seed = random.randrange(10**6) if options.seed is None else options.seed  # noqa: S311
    say(f"seed {seed}: the same again with make chaos MINUTES={options.minutes:g} SEED={seed}")
    try:
        held = uvloop.run(run(seed, options.minutes, options.round))
    except Unmet as unmet:
        sys.exit(str(unmet))
    except KeyboardInterrupt:
        sys.exit(130)
    if not held:
        sys.exit(1)
    say(f"seed {seed}: everything held")


if __name__ == "__main__":
    main()
