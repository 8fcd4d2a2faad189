"""Writes the status of an object if the status changed. Records a Kubernetes Event if the Ready condition changed."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from gpu_runtime.contract.crd import conditions
from gpu_runtime.controller_manager.workload.status_rate_limit import StatusRateLimit
from gpu_runtime.controller_manager.workload.workload_readiness import Readiness
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.errors import KubeNotFound
from gpu_runtime.kube.event_recorder import EventRecorder
from gpu_runtime.kube.informer import Informer
from gpu_runtime.kube.meta import ApiResource, Condition, KubeObject, KubeStruct
from gpu_runtime.printable_text import printable

T = TypeVar("T", bound=KubeObject)

MAX_MESSAGE_LENGTH = 4096
"""Maximum length of a condition message in characters. Longer messages are truncated."""


@dataclass(frozen=True)
class StatusWriter:
    client: KubeClient
    recorder: EventRecorder
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    rate_limit: StatusRateLimit = field(default_factory=StatusRateLimit)

    async def write_limited(
        self, informer: Informer[T], owner: T, before: KubeStruct, after: KubeStruct
    ) -> float | None:
        """Write the status of an object whose readiness a user's program decides.

        If the status is written too often, write nothing, and return the seconds until the next attempt.
        """
        if before != after and (delay := self.rate_limit.take(owner.metadata.uid, self.clock().timestamp())):
            return delay
        await self.write_status(informer, owner, before, after)
        return None

    async def write_status(self, informer: Informer[T], owner: T, before: KubeStruct, after: KubeStruct) -> None:
        """Patch the status if it differs from the stored status. Do nothing if the object was deleted."""
        changes = status_patch(before, after)
        if not changes:
            return
        patch = {"status": changes | {"lastSyncTime": self.now()}}
        key, version = owner.metadata.key, owner.metadata.resource_version
        try:
            written = await self.client.merge_patch(
                informer.resource, key, patch, resource_version=version, subresource="status"
            )
        except KubeNotFound:
            return  # the object was deleted in the meantime
        informer.record_write(written)
        self._record_event(informer.resource, owner, _ready_condition(before), _ready_condition(after))

    def now(self) -> str:
        return self.clock().strftime("%Y-%m-%dT%H:%M:%SZ")

    def _record_event(
        self, resource: ApiResource[T], owner: T, before: Condition | None, after: Condition | None
    ) -> None:
        if after is None or not _needs_event(before, after):
            return
        record = self.recorder.normal if is_normal(after) else self.recorder.warning
        record(resource, owner, after.reason, after.message or after.reason)


def with_ready_condition(
    before: tuple[Condition, ...], readiness: Readiness[Any], generation: int, now: str
) -> tuple[Condition, ...]:
    """Return the conditions with the new Ready condition. Its transition time changes only if its status changes."""
    new = conditions.ready_condition(readiness.ready, readiness.reason, _truncated(readiness.message), generation)
    return conditions.set_condition(before, new, now)


def status_patch(before: KubeStruct, after: KubeStruct) -> dict[str, Any]:
    """Return the merge patch that changes `before` to `after`, without lastSyncTime. Removed fields become null."""
    old, new = msgspec.to_builtins(before), msgspec.to_builtins(after)
    names = (old.keys() | new.keys()) - {"lastSyncTime"}
    return {name: _changed(old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)}


def _changed(old: Any, new: Any) -> Any:
    """Return the value of a changed field. A merge patch merges objects, so the fields that they lose become null."""
    return dict.fromkeys(old) | new if isinstance(old, dict) and isinstance(new, dict) else new


def _ready_condition(status: KubeStruct) -> Condition | None:
    return conditions.find_condition(getattr(status, "conditions", ()), conditions.READY_CONDITION)


def _truncated(message: str) -> str:
    """Truncate the message, because the API server rejects a status with a message that is too long.

    Parts of the message can come from users' programs, for example the last line before a crash.
    """
    message = printable(message)
    return message if len(message) <= MAX_MESSAGE_LENGTH else message[: MAX_MESSAGE_LENGTH - 1] + "…"


def _needs_event(before: Condition | None, after: Condition) -> bool:
    """Return whether the change needs an Event.

    A new reason always needs an Event. A new message with the same reason needs an Event only if the condition reports
    a problem. Normal progress is visible only in the status.
    """
    if before is None or before.reason != after.reason:
        return True
    return before.message != after.message and not is_normal(after)


def is_normal(ready: Condition) -> bool:
    """Return whether the condition reports success or normal progress, so that its Event is not a warning."""
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
