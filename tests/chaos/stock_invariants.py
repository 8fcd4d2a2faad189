"""Checks the invariants of both grades of stock. Each check is a pure function and returns all violations."""

from collections.abc import Collection, Iterator
from dataclasses import replace

from gpu_runtime.contract.crd.well_known import Annotation, Label, return_operation_id
from gpu_runtime.contract.stock_grades import StockGrade, StockMiss
from tests.chaos.invariants import Snapshot, key_of, labels_of
from tests.chaos.request_history import NamedSource, RequestHistory
from tests.integration.controller_manager.conftest import Object, ready_condition
from tests.integration.runtime_api.stock_conservation import conservation_errors, consumed_stock

RETURN_OPERATION_PREFIX = return_operation_id("")
"""The prefix of the operationIDs with which the stock of a deleted worker is seeded again."""


def stock_violations(snapshot: Snapshot, history: RequestHistory, functions: Collection[str]) -> Iterator[str]:
    """Each seeded stock unit still exists, was withdrawn, or is the origin of exactly one unit.

    The stock of workers was returned.
    """
    deleted = {unit.name for unit in history.units.values() if unit.operation.deletion_requested_at is not None}
    for flavor, seeded in history.seeded.items():
        if flavor not in functions:
            withdrawn = {flavor: len(withdrawn_stock(snapshot, history, flavor))}
            yield from conservation_errors(snapshot.cluster, {flavor: seeded}, deleted, withdrawn)
            yield from _withdrawal_violations(snapshot, history, flavor)
            continue
        seedings = snapshot.cluster.operations_of("SeedStock", flavor)
        returned = sum(each["spec"]["operationID"].startswith(RETURN_OPERATION_PREFIX) for each in seedings)
        workers = {each["spec"]["target"]["name"] for each in snapshot.cluster.operations_of("CreateUnit", flavor)}
        units = [each for each in snapshot.cluster.units if each["metadata"]["name"] not in functions]
        yield from conservation_errors(replace(snapshot.cluster, units=units), {flavor: seeded + returned}, workers)
        if (remaining := len(snapshot.cluster.stock_of(flavor))) != seeded:
            yield f"{flavor}: {seeded} stock units were seeded, and {remaining} exist when no worker runs"


def withdrawn_stock(snapshot: Snapshot, history: RequestHistory, flavor: str) -> set[str]:
    """Return the names of the stock units that operators withdrew.

    If a request had no response, the API may have applied it. Then the stock unit is neither there nor consumed.
    """
    elsewhere = _remaining_names(snapshot, flavor) | _consumed_names(snapshot, flavor)
    return {
        name
        for name, each in history.withdrawals.items()
        if each.flavor == flavor and (each.confirmed or (each.uncertain and name not in elsewhere))
    }


def _withdrawal_violations(snapshot: Snapshot, history: RequestHistory, flavor: str) -> Iterator[str]:
    confirmed = {name for name, each in history.withdrawals.items() if each.flavor == flavor and each.confirmed}
    for name in sorted(confirmed & _remaining_names(snapshot, flavor)):
        yield f"stock unit {name} was withdrawn and still exists"
    for name in sorted(confirmed & _consumed_names(snapshot, flavor)):
        yield f"stock unit {name} was withdrawn and became a unit"


def _remaining_names(snapshot: Snapshot, flavor: str) -> set[str]:
    return {each["metadata"]["name"] for each in snapshot.cluster.stock_of(flavor)}


def _consumed_names(snapshot: Snapshot, flavor: str) -> set[str]:
    return {each["name"] for each in consumed_stock(snapshot.cluster, flavor) if not each.get("pool")}


def source_violations(history: RequestHistory, pool: Object) -> Iterator[str]:
    """No two units have the same source, and the grade of each source fits the request. `pool` is the only pool."""
    users: dict[str, str] = {}
    for unit in history.units.values():
        if (source := unit.operation.source) is None:
            continue
        if (other := users.setdefault(source.uid, unit.name)) != unit.name:
            yield f"units {other} and {unit.name} have the same source: {source}"
        yield from (f"unit {unit.name}: {each}" for each in _grade_violations(unit.operation.request, source, pool))


def _grade_violations(request: Object, source: NamedSource, pool: Object) -> Iterator[str]:
    allowed = request.get("stock", {}).get("grades", list(StockGrade))
    miss = _expected_miss(request, pool) if StockGrade.PREPARED in allowed else ""
    if source.grade not in allowed:
        yield f"the grade {source.grade} is not one of {allowed}"
    elif source.grade == StockGrade.PREPARED and miss != StockMiss.NONE_READY:
        yield f"a prepared pod was used although: {miss}"
    elif source.grade == StockGrade.RESERVED and source.missed != miss:
        yield f"no prepared pod was used because of {source.missed!r}; expected {miss!r}"


def _expected_miss(request: Object, pool: Object) -> str:
    """Return why a request cannot use a pod of the pool. A request that can use one still finds none ready at times."""
    if request.get("storageMounts"):
        return StockMiss.STORAGE_MOUNTS
    if request["image"] != pool["spec"]["image"]:
        return StockMiss.IMAGE_DIFFERS
    return StockMiss.NONE_READY if request["template"] == pool["spec"]["template"] else StockMiss.TEMPLATE_DIFFERS


def pod_violations(snapshot: Snapshot, history: RequestHistory) -> Iterator[str]:
    """Each running unit has one pod. A unit from a prepared pod has this pod, unless a request has ended the pod."""
    pods = [each for each in snapshot.pods if "deletionTimestamp" not in each["metadata"]]
    existing = {each["metadata"]["uid"] for each in pods}
    for unit in (*snapshot.cluster.units, *snapshot.cluster.stock):
        name, uid = unit["metadata"]["name"], unit["metadata"]["uid"]
        own = [each["metadata"]["uid"] for each in pods if labels_of(each).get(Label.UNIT_UID) == uid]
        if len(own) != (1 if unit["spec"].get("running", True) else 0):
            yield f"unit {name} has {len(own)} pods"
        requested = history.units.get(name)
        source = requested.operation.source if requested else None
        if requested is None or source is None or source.grade != StockGrade.PREPARED or source.uid in own:
            continue
        if source.uid in existing:
            yield f"prepared pod {source.uid} still exists, and unit {name} has another pod"
        elif not requested.pod_may_end:
            yield f"unit {name} has lost its prepared pod {source.uid}"


def ownership_violations(snapshot: Snapshot) -> Iterator[str]:
    """Every pod and every ReplicaSet has an owner, and every claimed pod belongs to an existing unit."""
    units = {each["metadata"]["uid"] for each in snapshot.cluster.units}
    for kind, objects in (("pod", snapshot.pods), ("ReplicaSet", snapshot.replica_sets)):
        yield from (f"{kind} {key_of(each)} has no owner" for each in objects if not _has_controller(each))
    for pod in snapshot.pods:
        if (claimed_by := _claim(pod)) and labels_of(pod).get(Label.UNIT_UID) not in units:
            yield f"pod {key_of(pod)} is claimed by {claimed_by}, and belongs to no unit"


def pool_violations(snapshot: Snapshot) -> Iterator[str]:
    """Every pool is full: all its replicas are Ready and unclaimed pods."""
    for pool in snapshot.pools:
        uid, replicas = pool["metadata"]["uid"], pool["spec"]["replicas"]
        pods = [each for each in snapshot.pods if labels_of(each).get(Label.POOL_UID) == uid]
        free = [each for each in pods if _is_ready(each) and not _claim(each)]
        if not len(pods) == len(free) == replicas:
            yield f"pool {key_of(pool)} has {len(pods)} pods, {len(free)} of them free, instead of {replicas}"
        if (phase := pool.get("status", {}).get("phase")) != "Ready":
            yield f"pool {key_of(pool)} is {phase}: {ready_condition(pool).get('message')}"


def _has_controller(item: Object) -> bool:
    return any(each.get("controller") for each in item["metadata"].get("ownerReferences") or ())


def _is_ready(pod: Object) -> bool:
    return "deletionTimestamp" not in pod["metadata"] and ready_condition(pod).get("status") == "True"


def _claim(item: Object) -> str:
    return str((item["metadata"].get("annotations") or {}).get(Annotation.CLAIMED_BY, ""))
