"""Adoptable pools delete as many pods as units wait for GPUs, and no more."""

from datetime import timedelta

import msgspec
import pytest

from gpu_runtime.contract.crd.well_known import Annotation, Label
from gpu_runtime.controller_manager.indexes import waiting_for_gpus
from gpu_runtime.controller_manager.stock_pool.children.deployment import deployment
from gpu_runtime.controller_manager.stock_pool.give_way import (
    GiveWay,
    WaitingPod,
    YieldingPool,
    give_way,
    until_change,
)
from gpu_runtime.controller_manager.stock_pool.status import readiness
from gpu_runtime.kube.builtin_kinds import Pod
from gpu_runtime.kube.meta import ObjectKey
from tests.unit.controller_manager.controller_objects import NOON, observed_pool, pool

A, B = ObjectKey("n", "a"), ObjectKey("n", "b")
Pools = dict[ObjectKey, YieldingPool]
Expected = dict[ObjectKey, tuple[int, set[str]]]


def waits(seconds: int, gpu: int = 1, uid: str = "") -> WaitingPod:
    return WaitingPod(uid or f"pod-{seconds}", gpu, NOON - timedelta(seconds=seconds))


def pods(running: int, gpu: int = 1, replicas: int = 3, claimed: int = 0, given: str = "") -> YieldingPool:
    return YieldingPool(gpu, replicas, running, claimed, frozenset(given.split()))


CASES: dict[str, tuple[Pools, list[WaitingPod], Expected]] = {
    "no unit waits": ({A: pods(3)}, [], {}),
    "unit waits for 9 s": ({A: pods(3)}, [waits(9)], {}),
    "unit waits for 10 s": ({A: pods(3)}, [waits(10)], {A: (2, {"pod-10"})}),
    "unit waits for 69 s": ({A: pods(3)}, [waits(69)], {A: (2, {"pod-69"})}),
    "unit waits too long": ({A: pods(3)}, [waits(70)], {}),
    "two units": ({A: pods(3)}, [waits(10), waits(20)], {A: (1, {"pod-10", "pod-20"})}),
    "pool has given way": ({A: pods(3, replicas=2, given="pod-20")}, [waits(20)], {A: (2, {"pod-20"})}),
    "pod has ended": ({A: pods(2, replicas=2, given="pod-20")}, [waits(20)], {A: (2, {"pod-20"})}),
    "pool has given way to one of two": (
        {A: pods(2, replicas=2, given="pod-20")},
        [waits(20), waits(10)],
        {A: (1, {"pod-10", "pod-20"})},
    ),
    "earlier unit has started": ({A: pods(2, replicas=2, given="old")}, [waits(10)], {A: (1, {"pod-10"})}),
    "handoff takes a pod meanwhile": ({A: pods(1, replicas=2, given="pod-20")}, [waits(20)], {A: (1, {"pod-20"})}),
    "pool does not start further pods": ({A: pods(1, replicas=3, given="pod-20")}, [waits(20)], {A: (1, {"pod-20"})}),
    "more units than pods": ({A: pods(1)}, [waits(10), waits(11)], {A: (0, {"pod-11"})}),
    "claimed pod stays": ({A: pods(1, claimed=1)}, [waits(10)], {A: (1, set())}),
    "pods are too small": ({A: pods(3)}, [waits(10, gpu=2)], {A: (3, set())}),
    "one pool gives way to one unit": ({A: pods(3), B: pods(3)}, [waits(10)], {A: (2, {"pod-10"}), B: (3, set())}),
    "another pool has given way": (
        {A: pods(3), B: pods(3, given="pod-10")},
        [waits(10)],
        {A: (3, set()), B: (3, {"pod-10"})},
    ),
    "second pool": ({A: pods(1), B: pods(3)}, [waits(10), waits(11)], {A: (0, {"pod-11"}), B: (2, {"pod-10"})}),
    "smallest pods that fit": (
        {A: pods(3, gpu=8), B: pods(1, gpu=4)},
        [waits(10, gpu=2)],
        {A: (3, set()), B: (0, {"pod-10"})},
    ),
}


@pytest.mark.parametrize(("pools", "waiting", "expected"), CASES.values(), ids=CASES)
def test_give_way(pools: Pools, waiting: list[WaitingPod], expected: Expected) -> None:
    decided = {key: give_way(key, pools, waiting, NOON) for key in pools}
    assert decided == {
        key: GiveWay(expected[key][0], frozenset(expected[key][1])) if key in expected else None for key in pools
    }


def test_pool_is_reconciled_when_the_decision_may_change() -> None:
    assert until_change([waits(4), waits(7), waits(30)], NOON) == 3
    assert until_change([waits(30)], NOON) == 40
    assert until_change([waits(70)], NOON) is None


def test_pool_that_gives_way_keeps_fewer_pods_and_records_the_unit() -> None:
    observed = observed_pool(pool(replicas=3), give_way=GiveWay(1, frozenset({"b", "a"})))
    manifest = deployment(observed)
    assert manifest["spec"]["replicas"] == 1
    assert manifest["metadata"]["annotations"][Annotation.GIVEN_WAY_TO] == "a,b"
    assert "the pool keeps 1, because units wait for GPUs" in readiness(observed).message
    assert deployment(observed_pool(pool(replicas=3)))["spec"]["replicas"] == 3


FULL = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
WAITING: dict[str, tuple[dict[str, object], bool]] = {
    "no node has enough GPUs": ({}, True),
    "no node has enough memory": ({"message": "0/1 nodes are available: 1 Insufficient memory."}, False),
    "pod preempts stock": ({"nominated": "node-1"}, False),
    "pod may preempt soon": ({"priority": "gpu-runtime-handoff"}, False),
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
    assert bool(waiting_for_gpus(msgspec.convert(manifest, Pod))) is waits
