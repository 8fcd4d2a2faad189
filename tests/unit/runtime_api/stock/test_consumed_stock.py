"""Consumed stock is deleted after the answer, and whoever is asked to end does that first."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from gpu_runtime.contract.crd.operation import SourceStock
from gpu_runtime.kube.client import Client
from gpu_runtime.kube.errors import NotFound, Status, Unreachable
from gpu_runtime.kube.meta import Key
from gpu_runtime.runtime_api.api_informers import Caches
from gpu_runtime.runtime_api.stock.consumed_deleter import ConsumedStock
from tests.unit.kube.fake_time import now, on_fake_time

STOCK = [SourceStock(namespace="stock", name=f"stock-{number}", uid=f"u{number}") for number in range(10)]
NAMES = [each.name for each in STOCK]


class Deletions:
    """A client and the caches of one: each deletion takes its time, and is forgotten afterwards."""

    def __init__(self, seconds: float = 1, meanwhile: Callable[[str], None] = lambda _: None) -> None:
        self.forgotten: list[str] = []
        self._seconds = seconds
        self._meanwhile = meanwhile

    @property
    def units(self) -> "Deletions":
        return self

    async def delete(self, _resource: Any, key: Key, *, uid: str) -> None:
        assert uid == f"u{key.name.removeprefix('stock-')}"
        self._meanwhile(key.name)
        await asyncio.sleep(self._seconds)

    def forget(self, key: Key, _uid: str) -> None:
        self.forgotten.append(key.name)

    def consumed(self, **limits: int) -> ConsumedStock:
        return ConsumedStock(cast(Client, self), cast(Caches, self), **limits)


def stopped() -> asyncio.Event:
    stopping = asyncio.Event()
    stopping.set()
    return stopping


@on_fake_time
async def test_what_waits_at_the_end_is_deleted_within_the_grace() -> None:
    deletions = Deletions()
    consumed = deletions.consumed(at_once=2)
    for each in STOCK:
        consumed.clear(each)
    await consumed.run(stopped(), grace=10)
    assert deletions.forgotten == NAMES
    assert now() == 1005


@on_fake_time
async def test_what_takes_longer_is_left_to_the_sweep() -> None:
    deletions = Deletions()
    consumed = deletions.consumed(at_once=2)
    for each in STOCK:
        consumed.clear(each)
    await consumed.run(stopped(), grace=2.5)
    assert deletions.forgotten == NAMES[:4]
    assert now() == 1002.5


@on_fake_time
async def test_beyond_the_limit_nothing_is_taken_on() -> None:
    deletions = Deletions()
    consumed = deletions.consumed(waiting=3)
    for each in STOCK:
        consumed.clear(each)
    await consumed.run(stopped(), grace=10)
    assert deletions.forgotten == NAMES[:3]


GONE = NotFound(Status(code=404, reason="NotFound", message="it is gone"))


@pytest.mark.parametrize(
    ("failure", "forgotten"), [(GONE, NAMES), (Unreachable("no answer", sent=True), NAMES[1:])], ids=["gone", "away"]
)
def test_one_failure_stops_nothing_else(failure: Exception, forgotten: list[str]) -> None:
    def fail(name: str) -> None:
        if name == NAMES[0]:
            raise failure

    @on_fake_time
    async def body() -> None:
        deletions = Deletions(meanwhile=fail)
        consumed = deletions.consumed()
        for each in STOCK:
            consumed.clear(each)
        await consumed.run(stopped(), grace=10)
        assert sorted(deletions.forgotten) == forgotten

    body()
