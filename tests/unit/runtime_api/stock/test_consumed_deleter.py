"""The consumed-stock deleter processes its queue in the background and finishes it on shutdown."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from gpu_runtime.contract.crd.operation import SourceStock
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.errors import ApiStatus, KubeNotFound, KubeUnreachable
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.runtime_api.api_informers import APIInformers
from gpu_runtime.runtime_api.stock.consumed_deleter import ConsumedStockDeleter
from tests.unit.kube.fake_time import now, on_fake_time

STOCK = [SourceStock(namespace="stock", name=f"stock-{number}", uid=f"u{number}") for number in range(10)]
NAMES = [each.name for each in STOCK]


class FakeDeletions:
    """A client and its informers. Each deletion takes some seconds and is recorded afterwards."""

    def __init__(self, seconds: float = 1, on_delete: Callable[[str], None] = lambda _: None) -> None:
        self.deleted_names: list[str] = []
        self._seconds = seconds
        self._on_delete = on_delete

    @property
    def units(self) -> "FakeDeletions":
        return self

    async def delete(self, _resource: Any, key: ObjectKey, *, uid: str) -> None:
        assert uid == f"u{key.name.removeprefix('stock-')}"
        self._on_delete(key.name)
        await asyncio.sleep(self._seconds)

    def record_delete(self, key: ObjectKey, _uid: str) -> None:
        self.deleted_names.append(key.name)

    def deleter(self, **limits: int) -> ConsumedStockDeleter:
        return ConsumedStockDeleter(cast(KubeClient, self), cast(APIInformers, self), **limits)


def stopped_event() -> asyncio.Event:
    stopping = asyncio.Event()
    stopping.set()
    return stopping


@on_fake_time
async def test_queued_deletions_finish_within_the_shutdown_timeout() -> None:
    deletions = FakeDeletions()
    deleter = deletions.deleter(max_concurrent_deletes=2)
    for each in STOCK:
        deleter.enqueue(each)
    await deleter.run(stopped_event(), grace_seconds=10)
    assert deletions.deleted_names == NAMES
    assert now() == 1005


@on_fake_time
async def test_deletions_after_the_shutdown_timeout_are_skipped() -> None:
    deletions = FakeDeletions()
    deleter = deletions.deleter(max_concurrent_deletes=2)
    for each in STOCK:
        deleter.enqueue(each)
    await deleter.run(stopped_event(), grace_seconds=2.5)
    assert deletions.deleted_names == NAMES[:4]
    assert now() == 1002.5


@on_fake_time
async def test_full_queue_drops_new_deletions() -> None:
    deletions = FakeDeletions()
    deleter = deletions.deleter(max_queued=3)
    for each in STOCK:
        deleter.enqueue(each)
    await deleter.run(stopped_event(), grace_seconds=10)
    assert deletions.deleted_names == NAMES[:3]


NOT_FOUND = KubeNotFound(ApiStatus(code=404, reason="NotFound", message="not found"))


@pytest.mark.parametrize(
    ("failure", "recorded"),
    [(NOT_FOUND, NAMES), (KubeUnreachable("no answer", sent=True), NAMES[1:])],
    ids=["already deleted", "API server unreachable"],
)
def test_failed_deletion_does_not_stop_the_queue(failure: Exception, recorded: list[str]) -> None:
    def fail(name: str) -> None:
        if name == NAMES[0]:
            raise failure

    @on_fake_time
    async def body() -> None:
        deletions = FakeDeletions(on_delete=fail)
        deleter = deletions.deleter()
        for each in STOCK:
            deleter.enqueue(each)
        await deleter.run(stopped_event(), grace_seconds=10)
        assert sorted(deletions.deleted_names) == recorded

    body()
