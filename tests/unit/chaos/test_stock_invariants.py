"""Each check of withdrawn stock and prepared pods accepts a consistent state and reports an inconsistent one."""

from dataclasses import replace
from typing import Any

import pytest

from gpu_runtime.contract.crd.well_known import Annotation, Label
from tests.chaos import invariants, stock_invariants
from tests.chaos.chaos_round import pool_manifest
from tests.chaos.invariants import Snapshot
from tests.chaos.request_history import NamedSource, Operation, RequestHistory, Unit, Withdrawal
from tests.chaos.unit_load import PORTS, PREPARED_IMAGE, PREPARED_TEMPLATE
from tests.chaos.watch_invariants import ClusterWatch
from tests.integration.controller_manager.conftest import Object
from tests.integration.runtime_api.live_platform import unit_request
from tests.unit.chaos.test_invariants import (
    a_stock_unit,
    a_unit,
    an_object,
    consumed_operation,
    make_snapshot,
    response,
    seeded,
)

POOL = pool_manifest("p", "f")
FITTING = {"image": PREPARED_IMAGE, "template": PREPARED_TEMPLATE}


def history_with_withdrawal(seeded_count: int, name: str, **withdrawal: bool) -> RequestHistory:
    history = seeded(f=seeded_count)
    history.withdrawals[name] = Withdrawal("f", **withdrawal)
    return history


def consumed_by_name(unit: str, stock: str, **source: str) -> Object:
    operation = consumed_operation(unit, f"uid-{stock}")
    operation["status"]["stock"] |= {"name": stock, **source}
    return operation


CONSUMED = make_snapshot(
    [a_unit("a", stock="uid-s1")], [a_stock_unit("s2")], [consumed_by_name("a", "s1")]
)  # one of three stock units is missing if nothing was withdrawn


@pytest.mark.parametrize(
    ("history", "is_conserved"),
    [
        (history_with_withdrawal(3, "s3", confirmed=True), True),
        (history_with_withdrawal(3, "s3", uncertain=True), True),
        (history_with_withdrawal(2, "s2", uncertain=True), True),  # the request without a response was not applied
        (history_with_withdrawal(2, "s1", uncertain=True), True),  # the handoff was faster
        (history_with_withdrawal(3, "s3"), False),
        (history_with_withdrawal(4, "s3", confirmed=True), False),
        (history_with_withdrawal(3, "s2", confirmed=True), False),
        (history_with_withdrawal(3, "s1", confirmed=True), False),
    ],
    ids=[
        "withdrawn",
        "withdrawn without a response",
        "not withdrawn",
        "consumed",
        "lost: the API refused the withdrawal",
        "another one is lost",
        "withdrawn and still there",
        "withdrawn and consumed",
    ],
)
def test_withdrawn_stock_is_conserved(history: RequestHistory, is_conserved: bool) -> None:
    assert (list(stock_invariants.stock_violations(CONSUMED, history, ())) == []) is is_conserved


def test_prepared_pod_does_not_count_as_stock_unit() -> None:
    units = [a_unit("a", stock="uid-pod")]
    snapshot = make_snapshot(units, [a_stock_unit("s1")], [consumed_by_name("a", "pod", pool="p")])
    assert list(stock_invariants.stock_violations(snapshot, seeded(f=1), ())) == []
    assert list(stock_invariants.stock_violations(snapshot, seeded(f=2), ()))


def test_prepared_pod_of_two_operations_is_reported() -> None:
    operations = [consumed_by_name("a", "pod", pool="p"), consumed_by_name("b", "pod", pool="p")]
    snapshot = make_snapshot([a_unit("a", stock="uid-pod"), a_unit("b", stock="uid-pod")], [], operations)
    assert list(stock_invariants.stock_violations(snapshot, seeded(f=0), ()))


def unit_from(grade: str, uid: str, name: str = "a", missed: str = "", **request: Any) -> Unit:
    answer = replace(response(201, 0, name), source=NamedSource(grade, uid, missed))
    return Unit(Operation(f"make-{name}", "/units", unit_request("f", name) | FITTING | request, [answer]))


def history_of(*units: Unit) -> RequestHistory:
    return RequestHistory(units={unit.name: unit for unit in units})


PREPARED_ONLY, RESERVED_ONLY = {"grades": ["prepared"]}, {"grades": ["reserved"]}
MOUNTS = [{"name": "d", "mountPath": "/d"}]


@pytest.mark.parametrize(
    "unit",
    [
        unit_from("prepared", "x"),
        unit_from("prepared", "x", stock=PREPARED_ONLY),
        unit_from("reserved", "x", missed="none ready"),
        unit_from("reserved", "x", stock=RESERVED_ONLY),
        unit_from("reserved", "x", missed="image differs", image="other"),
        unit_from("reserved", "x", missed="template differs", template=PORTS),
        unit_from("reserved", "x", missed="storage mounts", storageMounts=MOUNTS),
    ],
)
def test_source_that_fits_the_request_passes(unit: Unit) -> None:
    assert list(stock_invariants.source_violations(history_of(unit), POOL)) == []


@pytest.mark.parametrize(
    "unit",
    [
        unit_from("reserved", "x", missed="none ready", stock=PREPARED_ONLY),
        unit_from("prepared", "x", stock=RESERVED_ONLY),
        unit_from("prepared", "x", image="other"),
        unit_from("prepared", "x", template=PORTS),
        unit_from("prepared", "x", storageMounts=MOUNTS),
        unit_from("reserved", "x", missed="no pool"),
        unit_from("reserved", "x", missed="none ready", template=PORTS),
    ],
)
def test_source_that_does_not_fit_the_request_is_reported(unit: Unit) -> None:
    assert list(stock_invariants.source_violations(history_of(unit), POOL))


def test_two_units_with_the_same_source_are_reported() -> None:
    one, other = unit_from("prepared", "x"), unit_from("prepared", "y", "b")
    assert list(stock_invariants.source_violations(history_of(one, other), POOL)) == []
    same = unit_from("prepared", "x", "b")
    assert len(list(stock_invariants.source_violations(history_of(one, same), POOL))) == 1


OWNER = {"ownerReferences": [{"kind": "ReplicaSet", "controller": True}]}
READY = {"conditions": [{"type": "Ready", "status": "True"}]}


def unit_pod(name: str, unit: str, **metadata: Any) -> Object:
    labels = {Label.UNIT_UID: f"uid-{unit}", Label.PREPARED: "true"}
    return an_object(name, metadata={"labels": labels, **OWNER, **metadata}, spec={}, status=READY)


def pool_pod(name: str, claimed_by: str = "", status: Object = READY, **metadata: Any) -> Object:
    annotations = {Annotation.CLAIMED_BY: claimed_by} if claimed_by else {}
    metadata = {"labels": {Label.POOL_UID: "uid-p"}, "annotations": annotations, **OWNER, **metadata}
    return an_object(name, metadata=metadata, spec={}, status=status)


CHANGED = replace(unit_from("prepared", "uid-x"), pod_may_end=True)
TERMINATING: Object = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("unit", "pods"),
    [
        (unit_from("prepared", "uid-x"), [unit_pod("x", "a")]),
        (unit_from("reserved", "uid-s"), [unit_pod("y", "a")]),
        (CHANGED, [unit_pod("y", "a")]),
        (CHANGED, [unit_pod("y", "a"), unit_pod("x", "a", **TERMINATING)]),
    ],
)
def test_unit_with_one_expected_pod_passes(unit: Unit, pods: list[Object]) -> None:
    snapshot = make_snapshot([a_unit("a")], [], [], pods=pods)
    assert list(stock_invariants.pod_violations(snapshot, history_of(unit))) == []


@pytest.mark.parametrize(
    ("unit", "pods"),
    [
        (unit_from("prepared", "uid-x"), []),
        (unit_from("prepared", "uid-x"), [unit_pod("x", "a"), unit_pod("y", "a")]),
        (unit_from("prepared", "uid-x"), [unit_pod("y", "a")]),
        (CHANGED, [unit_pod("y", "a"), pool_pod("x", "make-a")]),
        (CHANGED, [unit_pod("y", "a"), unit_pod("z", "a")]),
    ],
    ids=["no pod", "two pods", "another pod", "prepared pod was not taken", "two new pods"],
)
def test_unit_without_its_expected_pod_is_reported(unit: Unit, pods: list[Object]) -> None:
    snapshot = make_snapshot([a_unit("a")], [], [], pods=pods)
    assert list(stock_invariants.pod_violations(snapshot, history_of(unit)))


def a_pool(replicas: int, phase: str = "Ready") -> Object:
    return an_object("p", spec={"replicas": replicas}, status={"phase": phase})


def with_pool(*pods: Object, phase: str = "Ready", **objects: Any) -> Snapshot:
    pools = [a_pool(1, phase)]
    return make_snapshot([a_unit("a")], [], [], pods=pods, pools=pools, **objects)


def test_full_pool_passes() -> None:
    snapshot = with_pool(pool_pod("x"), unit_pod("y", "a"))
    assert list(stock_invariants.pool_violations(snapshot)) == []
    assert list(stock_invariants.ownership_violations(snapshot)) == []
    snapshot = with_pool(pool_pod("x"), unit_pod("y", "a"), deployments=[an_object("a"), an_object("pool-p")])
    assert list(invariants.convergence_violations(snapshot)) == []


@pytest.mark.parametrize(
    "snapshot",
    [
        with_pool(),
        with_pool(pool_pod("x"), pool_pod("y")),
        with_pool(pool_pod("x", "make-a")),
        with_pool(pool_pod("x"), pool_pod("y", "make-a")),
        with_pool(pool_pod("x", status={})),
        with_pool(pool_pod("x", **TERMINATING)),
        with_pool(pool_pod("x"), phase="Progressing"),
    ],
    ids=["no pod", "two pods", "claimed", "another one is claimed", "not ready", "terminating", "other phase"],
)
def test_pool_that_is_not_full_is_reported(snapshot: Snapshot) -> None:
    assert list(stock_invariants.pool_violations(snapshot))


@pytest.mark.parametrize(
    "snapshot",
    [
        with_pool(pool_pod("x", "make-a")),
        with_pool(unit_pod("x", "deleted", annotations={Annotation.CLAIMED_BY: "make-deleted"})),
        with_pool(pool_pod("x", ownerReferences=[])),
        with_pool(unit_pod("x", "a", ownerReferences=[{"kind": "GPUUnit"}])),
        with_pool(replica_sets=[an_object("r")]),
    ],
    ids=["claimed in its pool", "claimed for a deleted unit", "no owner", "no controller", "ReplicaSet without owner"],
)
def test_claimed_or_ownerless_pod_is_reported(snapshot: Snapshot) -> None:
    assert list(stock_invariants.ownership_violations(snapshot))


def test_pods_of_a_deleted_pool_are_reported() -> None:
    snapshot = make_snapshot([], [], [], pods=[pool_pod("x")])
    assert list(invariants.convergence_violations(snapshot))


def test_pod_that_becomes_the_pod_of_two_units_is_reported() -> None:
    watch = ClusterWatch()
    for pod in (pool_pod("x"), pool_pod("x", "make-a"), unit_pod("x", "a", annotations=claim("make-a"))):
        watch.observe_pod("MODIFIED", pod)
    assert watch.violations == []
    watch.observe_pod("MODIFIED", unit_pod("x", "b", annotations=claim("make-a")))
    assert len(watch.violations) == 1


@pytest.mark.parametrize("later", [pool_pod("x"), pool_pod("x", "make-b")], ids=["free again", "another claim"])
def test_claim_that_changes_is_reported(later: Object) -> None:
    watch = ClusterWatch()
    watch.observe_pod("ADDED", pool_pod("x", "make-a"))
    watch.observe_pod("MODIFIED", later)
    assert len(watch.violations) == 1


def claim(operation_id: str) -> Object:
    return {Annotation.CLAIMED_BY: operation_id}
