"""Tells a verdict: into the object's status, only where that changes, and as a Kubernetes Event."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

import msgspec

from gpu_runtime.contract.crd import conditions
from gpu_runtime.kube.client import Client
from gpu_runtime.kube.errors import NotFound
from gpu_runtime.kube.event_recorder import Recorder
from gpu_runtime.kube.informer import Informer
from gpu_runtime.kube.meta import Condition, Object, Resource, Wire

T = TypeVar("T", bound=Object)

LONGEST_MESSAGE = 4096


class Told(Protocol):
    """What the Ready condition takes from a verdict."""

    @property
    def ready(self) -> bool: ...
    @property
    def reason(self) -> conditions.Reason: ...
    @property
    def message(self) -> str: ...


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
        try:
            written = await self.client.merge_patch(
                informer.resource, key, patch, resource_version=version, subresource="status"
            )
        except NotFound:
            return  # deleted meanwhile: there is nobody left to tell
        informer.learn(written)
        self._tell(informer.resource, found, _ready(before), _ready(after))

    def now(self) -> str:
        return self.clock().strftime("%Y-%m-%dT%H:%M:%SZ")

    def _tell(self, resource: Resource[T], found: T, before: Condition | None, after: Condition | None) -> None:
        if after is None or not _is_news(before, after):
            return
        tell = self.recorder.normal if _is_well(after) else self.recorder.warning
        tell(resource, found, after.reason, after.message or after.reason)


def condition(before: tuple[Condition, ...], verdict: Told, generation: int, now: str) -> tuple[Condition, ...]:
    new = conditions.ready(verdict.ready, verdict.reason, _shortened(verdict.message), generation)
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


def _shortened(message: str) -> str:
    """The API server refuses a status whose message is too long, and a status that is refused tells nothing."""
    return message if len(message) <= LONGEST_MESSAGE else message[: LONGEST_MESSAGE - 1] + "…"


def _is_news(before: Condition | None, after: Condition) -> bool:
    """Steps on the way are told by the status alone; of troubles, each is worth an Event."""
    if before is None or before.reason != after.reason:
        return True
    return before.message != after.message and not _is_well(after)


def _is_well(ready: Condition) -> bool:
    return ready.status == "True" or ready.reason in (
        conditions.Reason.UNIT_PROGRESSING,
        conditions.Reason.DEPLOYMENT_PROGRESSING,
        conditions.Reason.STOCK_RELEASING,
        conditions.Reason.SCALED_TO_ZERO,
        conditions.Reason.CLAIM_PENDING,
        conditions.Reason.WAIT_FOR_FIRST_CONSUMER,
        conditions.Reason.RESIZE_PENDING,
        conditions.Reason.DELETING,
    )
