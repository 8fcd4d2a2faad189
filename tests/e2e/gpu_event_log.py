"""A log of the GPUs that containers used on a real node: one interval from the start to the exit of each container.

containerd reports every start and exit. So the log contains every interval, also a short one between two samples.
"""

import json
import re
import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Self

from localcluster.node import CONTAINERD_SOCKET, Node

EVENT = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?) .* (?P<topic>/tasks/(start|exit)) (?P<body>\{.*\})"
)


@dataclass(frozen=True)
class GpuInterval:
    device: str
    pod: str
    """Namespace and name of the pod at the start of the container."""
    pod_uid: str
    started_at: datetime
    exited_at: datetime | None
    """None while the container runs."""


def find_overlaps(intervals: Iterable[GpuInterval]) -> list[tuple[GpuInterval, GpuInterval]]:
    """Return pairs of intervals in which two containers had the same device at the same time.

    For each interval, the result contains at most one earlier interval: the one that lasts longest.
    """
    by_device: dict[str, list[GpuInterval]] = defaultdict(list)
    for interval in intervals:
        by_device[interval.device].append(interval)
    overlaps = []
    for of_device in by_device.values():
        latest: GpuInterval | None = None
        for interval in sorted(of_device, key=lambda each: each.started_at):
            if latest is not None and _end(latest) > interval.started_at:
                overlaps.append((latest, interval))
            if latest is None or _end(interval) > _end(latest):
                latest = interval
    return overlaps


def _end(interval: GpuInterval) -> datetime:
    return interval.exited_at or datetime.max.replace(tzinfo=UTC)


@dataclass
class GpuEventLog:
    """Records the events of a node while it is open."""

    node: Node
    intervals: dict[str, list[GpuInterval]] = field(default_factory=dict)
    """The intervals of each container, by its ID. A container with several GPUs has several intervals."""

    def __enter__(self) -> Self:
        self._events = subprocess.Popen(self._ctr("events"), stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._record, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._events.kill()
        self._thread.join()
        self._events.communicate()

    @property
    def all(self) -> list[GpuInterval]:
        return [each for intervals in list(self.intervals.values()) for each in intervals]

    def of_pod(self, uid: str) -> list[GpuInterval]:
        return [each for each in self.all if each.pod_uid == uid]

    def _record(self) -> None:
        assert self._events.stdout
        for line in self._events.stdout:
            if not (event := EVENT.match(line)):
                continue
            body, time = json.loads(event["body"]), _parse_time(event["time"])
            container = body["container_id"]
            if event["topic"] == "/tasks/start":
                self.intervals[container] = self._started(container, time)
            elif body.get("id", container) == container:  # not the exit of a command in the container
                self.intervals[container] = [
                    GpuInterval(each.device, each.pod, each.pod_uid, each.started_at, time)
                    for each in self.intervals.get(container, [])
                ]

    def _started(self, container: str, time: datetime) -> list[GpuInterval]:
        found = subprocess.run(self._ctr("containers", "info", container), capture_output=True, text=True, check=False)
        if found.returncode:
            return []  # the container is already removed, so it has not started
        info = json.loads(found.stdout)
        labels, environment = info.get("Labels") or {}, info["Spec"]["process"].get("env", [])
        pod = f"{labels.get('io.kubernetes.pod.namespace')}/{labels.get('io.kubernetes.pod.name')}"
        devices = [each.partition("=")[2] for each in environment if each.startswith("NVIDIA_VISIBLE_DEVICES=")]
        uid = labels.get("io.kubernetes.pod.uid", "")
        return [GpuInterval(device, pod, uid, time, None) for each in devices for device in each.split(",") if device]

    def _ctr(self, *arguments: str) -> list[str]:
        enter = ["nsenter", f"--target={self.node.processes.supervisor_pid()}", "--mount", "--"]
        return [*enter, "ctr", f"--address={CONTAINERD_SOCKET}", "--namespace=k8s.io", *arguments]


def _parse_time(text: str) -> datetime:
    whole, _, fraction = text.partition(".")
    return datetime.strptime(f"{whole}.{fraction[:6] or '0'}+0000", "%Y-%m-%d %H:%M:%S.%f%z")
