"""Decides the faults of a round, with targets and times. The schedule is a pure function of seed and round number.

Faults are drawn from a shuffled list of all faults. When the list is used up, it is shuffled again. Every fault
therefore occurs within a few rounds, and the order and the combinations depend on the seed.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import count, islice

FAULTS_PER_ROUND = 10
FIRST_FAULT_SECONDS = 3.0
"""How long the load runs without a fault at the start of a round."""


class FaultKind(StrEnum):
    KILL = "kill"
    """SIGKILL. The supervisor of the process restarts it."""
    PAUSE = "pause"
    """SIGSTOP for longer than the lease durations and ack waits, then SIGCONT."""
    STALL = "stall"
    """A link that delivers no data. Everything that is sent during the stall arrives after it."""
    DISCONNECT = "disconnect"
    """A link whose connections are closed, and that accepts no new connections."""
    FULL_DISK = "full disk"


@dataclass(frozen=True)
class Fault:
    start_seconds: float
    """Seconds after the start of the load."""
    kind: FaultKind
    target: str
    duration_seconds: float
    target_index: int
    """Selects one of several possible targets: the index modulo the number of targets when the fault starts."""

    @property
    def end_seconds(self) -> float:
        return round(self.start_seconds + self.duration_seconds, 1)

    def __str__(self) -> str:
        duration = f" for {self.duration_seconds:.1f} s" if self.duration_seconds else ""
        return f"{self.start_seconds:5.1f} s  {self.kind} {self.target}{duration}"


PROCESSES = (
    "runtime-api",
    "leading controller-manager",
    "leading activator",
    "standby activator",
    "result-store",
    "sidecar",
    "framework",
    "nats",
    "kube-apiserver",
    "etcd",
)
KILL_ONLY_PROCESSES = ("standby controller-manager", "kube-controller-manager", "kube-scheduler")
LINKS = (
    "runtime-api to kubernetes",
    "runtime-api to nats",
    "leading controller-manager to kubernetes",
    "leading activator to kubernetes",
    "leading activator to nats",
    "leading activator to runtime-api",
    "standby activator to nats",
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
"""The minimum and maximum duration of each kind of fault."""
INTERVAL_SECONDS = (1.0, 5.5)
"""The minimum and maximum time between the starts of two faults. It is longer while two faults are active."""


def schedule_faults(seed: int, number: int) -> tuple[Fault, ...]:
    """Return the faults of a round, sorted by start time. At most two faults overlap. Round numbers start at one."""
    rng = random.Random(f"{seed}/round/{number}")  # noqa: S311 - the schedule must be reproducible
    faults: list[Fault] = []
    start = FIRST_FAULT_SECONDS
    for kind, target in islice(_shuffled_faults(seed), (number - 1) * FAULTS_PER_ROUND, number * FAULTS_PER_ROUND):
        if len(faults) > 1:
            start = max(start, sorted(each.end_seconds for each in faults)[-2])
        duration = round(rng.uniform(*DURATION_SECONDS[kind]), 1)
        start = round(start, 1)
        faults.append(Fault(start, kind, target, duration, rng.randrange(2**16)))
        start += rng.uniform(*INTERVAL_SECONDS)
    return tuple(faults)


def _shuffled_faults(seed: int) -> Iterator[tuple[FaultKind, str]]:
    for deck in count():
        yield from random.Random(f"{seed}/deck/{deck}").sample(ALL_FAULTS, len(ALL_FAULTS))  # noqa: S311
