"""What goes wrong in a round, where and when: a pure function of the seed and the round's number.

Faults are dealt from a shuffled deck, as cards are, so that a few rounds have had every one of them, and the order and
the company in which they come differ from seed to seed.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import count, islice

FAULTS_PER_ROUND = 10
FIRST_FAULT_SECONDS = 3.0
"""Seconds of undisturbed load at the beginning of a round."""


class FaultKind(StrEnum):
    KILL = "kill"
    """SIGKILL; whoever minds the process starts it again."""
    PAUSE = "pause"
    """SIGSTOP, for longer than leases and deliveries last, and SIGCONT."""
    STALL = "silence"
    """A link on which nothing arrives, and everything that was sent arrives late."""
    DISCONNECT = "cut"
    """A link whose connections break, and which takes no new ones."""
    FULL_DISK = "full disk"


@dataclass(frozen=True)
class Fault:
    start_seconds: float
    """Seconds after the round's load began."""
    kind: FaultKind
    target: str
    duration_seconds: float
    target_index: int
    """Which one is meant, where there are several, by whatever number of them there is then."""

    @property
    def end_seconds(self) -> float:
        return round(self.start_seconds + self.duration_seconds, 1)

    def __str__(self) -> str:
        lasting = f" for {self.duration_seconds:.1f} s" if self.duration_seconds else ""
        return f"{self.start_seconds:5.1f} s  {self.kind} {self.target}{lasting}"


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
KILL_ONLY_PROCESSES = ("standing-by controller-manager", "kube-controller-manager", "kube-scheduler")
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

ALL_FAULTS: tuple[tuple[FaultKind, str], ...] = (
    *((FaultKind.KILL, target) for target in (*PROCESSES, *KILL_ONLY_PROCESSES)),
    *((FaultKind.PAUSE, target) for target in PROCESSES),
    *((FaultKind.STALL, target) for target in LINKS),
    *((FaultKind.DISCONNECT, target) for target in LINKS),
    *((FaultKind.FULL_DISK, target) for target in DISKS),
)

DURATION_SECONDS = {
    FaultKind.KILL: (0.0, 0.0),
    FaultKind.PAUSE: (9.0, 12.0),
    FaultKind.STALL: (6.0, 14.0),
    FaultKind.DISCONNECT: (3.0, 8.0),
    FaultKind.FULL_DISK: (5.0, 9.0),
}
"""Seconds, at least and at most."""
INTERVAL_SECONDS = (1.0, 5.5)
"""Seconds between the beginnings of two faults, at least and at most, unless two of them are still going on."""


def schedule_faults(seed: int, number: int) -> tuple[Fault, ...]:
    """The faults of the round with this number, counted from one, by when they begin. Two at a time at most."""
    chance = random.Random(f"{seed}/round/{number}")  # noqa: S311 - it is to be the same every time
    faults: list[Fault] = []
    at = FIRST_FAULT_SECONDS
    for kind, target in islice(_shuffled_faults(seed), (number - 1) * FAULTS_PER_ROUND, number * FAULTS_PER_ROUND):
        if len(faults) > 1:
            at = max(at, sorted(each.end_seconds for each in faults)[-2])
        seconds = round(chance.uniform(*DURATION_SECONDS[kind]), 1)
        at = round(at, 1)
        faults.append(Fault(at, kind, target, seconds, chance.randrange(2**16)))
        at += chance.uniform(*INTERVAL_SECONDS)
    return tuple(faults)


def _shuffled_faults(seed: int) -> Iterator[tuple[FaultKind, str]]:
    for deck in count():
        yield from random.Random(f"{seed}/deck/{deck}").sample(ALL_FAULTS, len(ALL_FAULTS))  # noqa: S311
