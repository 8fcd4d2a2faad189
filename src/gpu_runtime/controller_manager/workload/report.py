"""Tells a verdict: into the object's status, only where that changes, and as a Kubernetes Event."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from gpu_runtime.contract.crd import conditions
from gpu_runtime.controller_manager.workload.verdict import Verdict
from gpu_runtime.kube.client import Client
from gpu_runtime.kube.events import Recorder
from gpu_runtime.kube.informer import Informer
from gpu_runtime.kube.objects import Condition, Object, Resource, Wire

T = TypeVar("T", bound=Object)


@dataclass(frozen=True)
class Reporter:
    client: Client
    recorder: Recorder
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)

    async def report(self, informer: Informer[T], found: T, before: Wire, after: Wire) -> None:
        """Write the status if it says something new, and note the event if the verdict is new."""
        if same(before, after):
            return
        patch = {"status": difference(before, after) | {"lastSyncTime": self.now()}}
        key, version = found.metadata.key, found.metadata.resource_version
        written = await self.client.merge_patch(
            informer.resource, key, patch, resource_version=version, subresource="status"
        )
        informer.learn(written)
        self._tell(informer.resource, found, _ready(before), _ready(after))

    def now(self) -> str:
        return self.clock().strftime("%Y-%m-%dT%H:%M:%SZ")

    def _tell(self, resource: Resource[T], found: T, before: Condition | None, after: Condition | None) -> None:
        if after is None or (before and (before.reason, before.message) == (after.reason, after.message)):
            return
        tell = self.recorder.normal if after.status == "True" or _in_progress(after) else self.recorder.warning
        tell(resource, found, after.reason, after.message or after.reason)


def condition(before: tuple[Condition, ...], verdict: Verdict, generation: int, now: str) -> tuple[Condition, ...]:
    new = conditions.ready(verdict.ready, verdict.reason, verdict.message, generation)
    return conditions.with_condition(before, new, now)


def same(before: Wire, after: Wire) -> bool:
    """Whether two statuses say the same, whenever they were written."""
    return _content(before) == _content(after)


def difference(before: Wire, after: Wire) -> dict[str, Any]:
    """A merge patch from one status to the other: what is no longer said is taken away."""
    old, new = _content(before), _content(after)
    return {field: new.get(field) for field in old.keys() | new.keys() if old.get(field) != new.get(field)}


def _content(status: Wire) -> dict[str, Any]:
    content: dict[str, Any] = msgspec.to_builtins(status)
    content.pop("lastSyncTime", None)
    return content


def _ready(status: Wire) -> Condition | None:
    return conditions.find(getattr(status, "conditions", ()), conditions.READY)


def _in_progress(ready: Condition) -> bool:
    return ready.reason in (
        conditions.Reason.UNIT_PROGRESSING,
        conditions.Reason.DEPLOYMENT_PROGRESSING,
        conditions.Reason.STOCK_RELEASING,
        conditions.Reason.SCALED_TO_ZERO,
    )
