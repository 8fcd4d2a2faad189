"""What goes wrong in a round, where and when: a pure function of the seed and the round's number.

Faults are dealt from a shuffled deck, as cards are, so that a few rounds have had every one of them, and the order and
the company in which they come differ from seed to seed.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import count, islice

PER_ROUND = 10
FIRST = 3.0
"""Seconds of undisturbed load at the beginning of a round."""


class Kind(StrEnum):
    KILL = "kill"
    """SIGKILL; whoever minds the process starts it again."""
    PAUSE = "pause"
    """SIGSTOP, for longer than leases and deliveries last, and SIGCONT."""
    SILENCE = "silence"
    """A link on which nothing arrives, and everything that was sent arrives late."""
    CUT = "cut"
    """A link whose connections break, and which takes no new ones."""
    FULL = "full disk"


@dataclass(frozen=True)
class Fault:
    at: float
    """Seconds after the round's load began."""
    kind: Kind
    target: str
    seconds: float
    pick: int
    """Which one is meant, where there are several, by whatever number of them there is then."""

    @property
    def ends(self) -> float:
        return round(self.at + self.seconds, 1)

    def __str__(self) -> str:
        lasting = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.at:5.1f} s  {self.kind} {self.target}{lasting}"


PROCESSES = (
    "runtime-api",
    "leading controller-manager",
    "leading activator",
    "standing-by activator",
    "result-store",
    "sidecar",
    "framework",
    "nats",
    "kube-apiserver",
    "etcd",
)
ONLY_KILLED = ("standing-by controller-manager", "kube-controller-manager", "kube-scheduler")
LINKS = (
    "runtime-api to kubernetes",
    "runtime-api to nats",
    "leading controller-manager to kubernetes",
    "leading activator to kubernetes",
    "leading activator to nats",
    "leading activator to runtime-api",
    "standing-by activator to nats",
    "result-store to nats",
    "sidecar to nats",
)
DISKS = ("nats", "result-store")

DECK: tuple[tuple[Kind, str], ...] = (
    *((Kind.KILL, target) for target in (*PROCESSES, *ONLY_KILLED)),
    *((Kind.PAUSE, target) for target in PROCESSES),
    *((Kind.SILENCE, target) for target in LINKS),
    *((Kind.CUT, target) for target in LINKS),
    *((Kind.FULL, target) for target in DISKS),
)

LASTING = {
    Kind.KILL: (0.0, 0.0),
    Kind.PAUSE: (9.0, 12.0),
    Kind.SILENCE: (6.0, 14.0),
    Kind.CUT: (3.0, 8.0),
    Kind.FULL: (5.0, 9.0),
}
"""Seconds, at least and at most."""
APART = (1.0, 5.5)
"""Seconds between the beginnings of two faults, at least and at most, unless two of them are still going on."""


def plan(seed: int, number: int) -> tuple[Fault, ...]:
    """The faults of the round with this number, counted from one, by when they begin. Two at a time at most."""
    chance = random.Random(f"{seed}/round/{number}")  # noqa: S311 - it is to be the same every time
    faults: list[Fault] = []
    at = FIRST
    for kind, target in islice(_dealt(seed), (number - 1) * PER_ROUND, number * PER_ROUND):
        if len(faults) > 1:
            at = max(at, sorted(each.ends for each in faults)[-2])
        seconds = round(chance.uniform(*LASTING[kind]), 1)
        at = round(at, 1)
        faults.append(Fault(at, kind, target, seconds, chance.randrange(2**16)))
        at += chance.uniform(*APART)
    return tuple(faults)


def _dealt(seed: int) -> Iterator[tuple[Kind, str]]:
    for deck in count():
        yield from random.Random(f"{seed}/deck/{deck}").sample(DECK, len(DECK))  # noqa: S311
