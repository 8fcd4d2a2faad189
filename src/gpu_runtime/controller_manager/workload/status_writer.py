"""Tells a verdict: into the object's status, only where that changes, and as a Kubernetes Event."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

import msgspec

from gpu_runtime.contract.crd import conditions
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.errors import KubeNotFound
from gpu_runtime.kube.event_recorder import EventRecorder
from gpu_runtime.kube.informer import Informer
from gpu_runtime.kube.meta import ApiResource, Condition, KubeObject, KubeStruct

T = TypeVar("T", bound=KubeObject)

MAX_MESSAGE_LENGTH = 4096


class HasReadiness(Protocol):
    """What the Ready condition takes from a verdict."""

    @property
    def ready(self) -> bool: ...
    @property
    def reason(self) -> conditions.ReadyReason: ...
    @property
    def message(self) -> str: ...


@dataclass(frozen=True)
class StatusWriter:
    client: KubeClient
    recorder: EventRecorder
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)

    async def write_status(self, informer: Informer[T], found: T, before: KubeStruct, after: KubeStruct) -> None:
        """Write the status if it says something new, and note the event if the verdict is new."""
        if same_status(before, after):
            return
        patch = {"status": status_patch(before, after) | {"lastSyncTime": self.now()}}
        key, version = found.metadata.key, found.metadata.resource_version
        try:
            written = await self.client.merge_patch(
                informer.resource, key, patch, resource_version=version, subresource="status"
            )
        except KubeNotFound:
            return  # deleted meanwhile: there is nobody left to tell
        informer.record_write(written)
        self._record_event(informer.resource, found, _ready_condition(before), _ready_condition(after))

    def now(self) -> str:
        return self.clock().strftime("%Y-%m-%dT%H:%M:%SZ")

    def _record_event(
        self, resource: ApiResource[T], found: T, before: Condition | None, after: Condition | None
    ) -> None:
        if after is None or not _needs_event(before, after):
            return
        tell = self.recorder.normal if _is_normal(after) else self.recorder.warning
        tell(resource, found, after.reason, after.message or after.reason)


def with_ready_condition(
    before: tuple[Condition, ...], verdict: HasReadiness, generation: int, now: str
) -> tuple[Condition, ...]:
    new = conditions.ready_condition(verdict.ready, verdict.reason, _truncated(verdict.message), generation)
    return conditions.set_condition(before, new, now)


def same_status(before: KubeStruct, after: KubeStruct) -> bool:
    """Whether two statuses say the same, whenever they were written."""
    return _comparable_fields(before) == _comparable_fields(after)


def status_patch(before: KubeStruct, after: KubeStruct) -> dict[str, Any]:
    """A merge patch from one status to the other: what is no longer said is taken away."""
    old, new = _comparable_fields(before), _comparable_fields(after)
    return {field: new.get(field) for field in old.keys() | new.keys() if old.get(field) != new.get(field)}


def _comparable_fields(status: KubeStruct) -> dict[str, Any]:
    content: dict[str, Any] = msgspec.to_builtins(status)
    content.pop("lastSyncTime", None)
    return content


def _ready_condition(status: KubeStruct) -> Condition | None:
    return conditions.find_condition(getattr(status, "conditions", ()), conditions.READY_CONDITION)


def _truncated(message: str) -> str:
    """The API server refuses a status whose message is too long, and a status that is refused tells nothing."""
    return message if len(message) <= MAX_MESSAGE_LENGTH else message[: MAX_MESSAGE_LENGTH - 1] + "…"


def _needs_event(before: Condition | None, after: Condition) -> bool:
    """Steps on the way are told by the status alone; of troubles, each is worth an Event."""
    if before is None or before.reason != after.reason:
        return True
    return before.message != after.message and not _is_normal(after)


def _is_normal(ready: Condition) -> bool:
    return ready.status == "True" or ready.reason in (
        conditions.ReadyReason.UNIT_PROGRESSING,
        conditions.ReadyReason.DEPLOYMENT_PROGRESSING,
        conditions.ReadyReason.STOCK_RELEASING,
        conditions.ReadyReason.SCALED_TO_ZERO,
        conditions.ReadyReason.CLAIM_PENDING,
        conditions.ReadyReason.WAIT_FOR_FIRST_CONSUMER,
        conditions.ReadyReason.RESIZE_PENDING,
        conditions.ReadyReason.DELETING,
    )
