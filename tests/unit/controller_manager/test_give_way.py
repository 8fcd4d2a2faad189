"""Adoptable pools delete as many pods as units wait for GPUs, and no more."""

from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from msgspec import structs

from gpu_runtime.contract.crd.stock_pool import StockPool, StockPoolSpec
from gpu_runtime.contract.crd.well_known import Annotation, Label
from gpu_runtime.controller_manager.controller_informers import new_informers
from gpu_runtime.controller_manager.indexes import waiting_for_gpus
from gpu_runtime.controller_manager.stock_pool import pool_rules
from gpu_runtime.controller_manager.stock_pool.children.deployment import deployment
from gpu_runtime.controller_manager.stock_pool.give_way import (
    GiveWay,
    WaitingPod,
    YieldingPool,
    give_way,
    until_change,
)
from gpu_runtime.controller_manager.stock_pool.observe import given_way_to, may_get_stock, observe
from gpu_runtime.controller_manager.stock_pool.status import readiness
from gpu_runtime.controller_manager.unstructured import RawDeployment
from gpu_runtime.kube.builtin_kinds import Pod
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.kube.metrics import KubeMetrics
from tests.unit.controller_manager.controller_objects import NOON, SETTINGS, observed_pool, pod, pool, unit

A, B = ObjectKey("n", "a"), ObjectKey("n", "b")
Pools = dict[ObjectKey, YieldingPool]
Expected = dict[ObjectKey, tuple[int, dict[str, int]]]
"""For each pool that gives way: how many pods it keeps, and how many seconds ago it gave way to each unit."""


def waits(seconds: int, gpu: int = 1, *, may_get_stock: bool = False) -> WaitingPod:
    return WaitingPod(f"unit-{seconds}", gpu, ago(seconds), may_get_stock)


def ago(seconds: int) -> datetime:
    return NOON - timedelta(seconds=seconds)


def pods(
    running: int, gpu: int = 1, replicas: int = 3, claimed: int = 0, given: dict[str, int] | None = None
) -> YieldingPool:
    records = {uid: ago(seconds) for uid, seconds in (given or {}).items()}
    return YieldingPool(gpu, replicas, running, claimed, records)


CASES: dict[str, tuple[Pools, list[WaitingPod], Expected]] = {
    "no unit waits": ({A: pods(3)}, [], {}),
    "unit waits for 9 s": ({A: pods(2)}, [waits(9)], {A: (2, {})}),
    "unit waits for 10 s": ({A: pods(3)}, [waits(10)], {A: (2, {"unit-10": 0})}),
    "unit waits for its stock": ({A: pods(2)}, [waits(60, may_get_stock=True)], {A: (2, {})}),
    "unit waits too long for its stock": ({A: pods(2)}, [waits(70, may_get_stock=True)], {}),
    "unit has waited for long when the pool starts": ({A: pods(3)}, [waits(900)], {A: (2, {"unit-900": 0})}),
    "two units": ({A: pods(3)}, [waits(10), waits(20)], {A: (1, {"unit-10": 0, "unit-20": 0})}),
    "pool has given way": ({A: pods(3, replicas=2, given={"unit-20": 9})}, [waits(20)], {A: (2, {"unit-20": 9})}),
    "pod has ended": ({A: pods(2, replicas=2, given={"unit-20": 9})}, [waits(20)], {A: (2, {"unit-20": 9})}),
    "unit does not start": ({A: pods(2, replicas=2, given={"unit-70": 59})}, [waits(70)], {A: (2, {"unit-70": 59})}),
    "unit has not started in time": ({A: pods(2, replicas=2, given={"unit-70": 60})}, [waits(70)], {}),
    "pool gives way to each unit only once": ({A: pods(3, given={"unit-900": 599})}, [waits(900)], {}),
    "pool gives way again after 10 minutes": (
        {A: pods(3, given={"unit-900": 600})},
        [waits(900)],
        {A: (2, {"unit-900": 0})},
    ),
    "unit gets another pod": ({A: pods(2, given={"unit-10": 99})}, [waits(10)], {}),
    "pool has given way to one of two": (
        {A: pods(2, replicas=2, given={"unit-20": 9})},
        [waits(20), waits(10)],
        {A: (1, {"unit-10": 0, "unit-20": 9})},
    ),
    "earlier unit has started": (
        {A: pods(2, replicas=2, given={"old": 9, "older": 600})},
        [waits(10)],
        {A: (1, {"unit-10": 0, "old": 9})},
    ),
    "last unit has started": ({A: pods(2, replicas=2, given={"old": 9})}, [], {}),
    "handoff takes a pod meanwhile": (
        {A: pods(1, replicas=2, given={"unit-20": 9})},
        [waits(20)],
        {A: (1, {"unit-20": 9})},
    ),
    "pool does not start further pods": (
        {A: pods(1, replicas=3, given={"unit-20": 9})},
        [waits(20)],
        {A: (1, {"unit-20": 9})},
    ),
    "more units than pods": ({A: pods(1)}, [waits(10), waits(11)], {A: (0, {"unit-11": 0})}),
    "claimed pod stays": ({A: pods(1, claimed=1)}, [waits(10)], {A: (1, {})}),
    "pods are too small": ({A: pods(3)}, [waits(10, gpu=2)], {A: (3, {})}),
    "pods of the pool wait, too": ({A: pods(0)}, [waits(69)], {A: (0, {})}),
    "pods are too small for a long time": ({A: pods(3)}, [waits(70, gpu=2)], {}),
    "one pool gives way to one unit": ({A: pods(3), B: pods(3)}, [waits(10)], {A: (2, {"unit-10": 0}), B: (3, {})}),
    "another pool has given way": (
        {A: pods(3), B: pods(3, given={"unit-10": 0})},
        [waits(10)],
        {A: (3, {}), B: (3, {"unit-10": 0})},
    ),
    "another pool has given way long ago": ({A: pods(3), B: pods(2, given={"unit-80": 60})}, [waits(80)], {}),
    "second pool": ({A: pods(1), B: pods(3)}, [waits(10), waits(11)], {A: (0, {"unit-11": 0}), B: (2, {"unit-10": 0})}),
    "smallest pods that fit": (
        {A: pods(3, gpu=8), B: pods(1, gpu=4)},
        [waits(10, gpu=2)],
        {A: (3, {}), B: (0, {"unit-10": 0})},
    ),
}


@pytest.mark.parametrize(("pools", "waiting", "expected"), CASES.values(), ids=CASES)
def test_give_way(pools: Pools, waiting: list[WaitingPod], expected: Expected) -> None:
    for key in pools:
        found = give_way(key, pools, waiting, NOON)
        if key not in expected:
            assert found is None
            continue
        max_replicas, records = expected[key]
        assert found == GiveWay(max_replicas, {uid: ago(seconds) for uid, seconds in records.items()})


def test_pool_is_reconciled_when_the_decision_may_change() -> None:
    assert until_change({A: pods(3)}, [waits(4), waits(7), waits(30)], NOON) == 3
    assert until_change({A: pods(3)}, [waits(30)], NOON) == 40
    assert until_change({A: pods(3)}, [waits(70)], NOON) is None
    assert until_change({A: pods(3, given={"unit-900": 20})}, [waits(900)], NOON) == 40
    assert until_change({A: pods(3, given={"unit-900": 60})}, [waits(900)], NOON) is None


def test_pool_that_gives_way_keeps_fewer_pods_and_records_the_unit() -> None:
    observed = observed_pool(pool(replicas=3), give_way=GiveWay(1, {"b": ago(0), "a": ago(5)}))
    manifest = deployment(observed)
    assert manifest["spec"]["replicas"] == 1
    recorded = manifest["metadata"]["annotations"][Annotation.GIVEN_WAY_TO]
    assert recorded == "a=2026-01-01T11:59:55Z,b=2026-01-01T12:00:00Z"
    assert "the pool keeps 1, because units wait for GPUs" in readiness(observed).message
    assert deployment(observed_pool(pool(replicas=3)))["spec"]["replicas"] == 3
    assert given_way_to(msgspec.convert(manifest, RawDeployment)) == {"a": ago(5), "b": ago(0)}


@pytest.mark.parametrize("recorded", ["", ",", "a", "a=", "=", "a=yesterday", "a,b"])
def test_invalid_records_are_ignored(recorded: str) -> None:
    manifest = {"metadata": {"annotations": {Annotation.GIVEN_WAY_TO: recorded}}}
    assert given_way_to(msgspec.convert(manifest, RawDeployment)) == {}


FULL = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
WAITING: dict[str, tuple[dict[str, object], bool]] = {
    "no node has enough GPUs": ({}, True),
    "no node has enough memory": ({"message": "0/1 nodes are available: 1 Insufficient memory."}, False),
    "pod preempts stock": ({"nominated": "node-1"}, True),
    "pod waits for its stock": ({"priority": "gpu-runtime-handoff"}, True),
    "stock pod": ({"role": "stock"}, False),
    "pod is being deleted": ({"deleted": "2026-01-01T00:00:00Z"}, False),
}


@pytest.mark.parametrize(("changes", "waits"), WAITING.values(), ids=WAITING)
def test_pods_to_which_a_pool_gives_way(changes: dict[str, str], waits: bool) -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    manifest = {
        "metadata": {
            "labels": {Label.ROLE: changes.get("role", "active"), Label.UNIT: "web"},
            "deletionTimestamp": changes.get("deleted"),
        },
        "spec": {"priorityClassName": changes.get("priority", "gpu-runtime-active")},
        "status": {
            "conditions": [condition | {"message": changes.get("message", FULL)}],
            "nominatedNodeName": changes.get("nominated", ""),
        },
    }
    found = msgspec.convert(manifest, Pod)
    assert bool(waiting_for_gpus(found)) is waits
    assert may_get_stock(found) is ("nominated" in changes or "priority" in changes)


async def test_each_pool_is_validated_once_while_a_unit_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pool decides for all pools, so the number of validations would otherwise grow with its square."""
    validated: list[StockPoolSpec] = []

    def count_validation(spec: StockPoolSpec, *_: object) -> list[object]:
        validated.append(spec)
        return []

    monkeypatch.setattr(pool_rules, "pool_errors", count_validation)
    pool_rules.invalid_pool.cache_clear()
    client = cast(KubeClient, SimpleNamespace(with_options=lambda **_: None))
    informers = new_informers(client, KubeMetrics(), resync_seconds=600)
    pools = [named_pool(f"pool-{number}", replicas=number) for number in range(20)]
    for each in pools:
        informers.pools.store.put(each)
    informers.units.store.put(unit(gpu=1))
    informers.pods.store.put(unit_pod_without_gpus())
    for each in pools:
        assert observe(each, informers, SETTINGS, NOON).give_way is not None
    assert len(validated) == len(pools)
    pool_rules.invalid_pool.cache_clear()


def named_pool(name: str, **spec: Any) -> StockPool:
    found = pool(image="python", gpu=1, template={"command": ["serve"]}, adoptable=True, **spec)
    return structs.replace(found, metadata=structs.replace(found.metadata, name=name, uid=name))


def unit_pod_without_gpus() -> Pod:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": FULL}
    labels = {Label.UNIT: "web", Label.UNIT_UID: "uid-of-web", Label.ROLE: "active"}
    return pod(created="2026-01-01T12:00:00Z", phase="Pending", conditions=[condition], labels=labels)
