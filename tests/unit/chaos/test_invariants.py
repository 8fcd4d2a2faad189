"""Each invariant check accepts a consistent state and reports an inconsistent one."""

import json
from dataclasses import replace
from typing import Any

import pytest

from gpu_runtime.contract.crd.well_known import Annotation, Label
from localcluster.supervisor_client import ProcessStatus
from tests.chaos import invariants, stock_invariants
from tests.chaos.invariants import Snapshot, StreamBacklog
from tests.chaos.request_history import (
    Invocation,
    Operation,
    PossibleValues,
    RecordedResponse,
    RequestHistory,
    Storage,
    Unit,
)
from tests.chaos.watch_invariants import ClusterWatch, StockOrigins
from tests.integration.controller_manager.conftest import Object
from tests.integration.runtime_api.live_platform import ClusterSnapshot, seed_request, unit_request

UNITS, STOCK = "runtime-instance", "runtime-stock"


def response(
    status: int, sent: float = 0, identity: str = "", code: str = "", other_body: bool = False
) -> RecordedResponse:
    return RecordedResponse(sent, sent + 0.5, status, code, identity, other_body)


def created(*responses: RecordedResponse, deletion_requested_at: float | None = None) -> Operation:
    return Operation("make-a", "/units", unit_request("f", "a"), list(responses), deletion_requested_at)


CONSISTENT_OPERATIONS = [
    created(response(201, 0, "a"), response(200, 1, "a")),
    created(response(409, 0, code="no_stock"), response(201, 1, "a")),
    created(response(201, 0, "a"), response(410, 3), deletion_requested_at=2),
    created(response(201, 0, "a"), response(409, 1, code="operation_reused", other_body=True)),
    created(response(409, 0.1, code="no_stock"), response(201, 0, "a")),  # sent before the other response arrived
]
INCONSISTENT_OPERATIONS = {
    "created twice": created(response(201, 0, "a"), response(201, 1, "a")),
    "another unit": created(response(201, 0, "a"), response(200, 1, "b")),
    "no stock after success": created(response(201, 0, "a"), response(409, 1, code="no_stock")),
    "deleted without a request": created(response(201, 0, "a"), response(410, 1)),
    "another body is accepted": created(response(201, 0, "a"), response(200, 1, "a", other_body=True)),
    "another body is rejected with another code": created(response(409, 1, code="no_stock", other_body=True)),
}


@pytest.mark.parametrize("operation", CONSISTENT_OPERATIONS)
def test_one_request_per_operation_id_passes(operation: Operation) -> None:
    assert list(invariants.operation_id_violations(operation)) == []


@pytest.mark.parametrize("name", INCONSISTENT_OPERATIONS)
def test_operation_id_with_two_meanings_is_reported(name: str) -> None:
    assert list(invariants.operation_id_violations(INCONSISTENT_OPERATIONS[name]))


def an_object(name: str, namespace: str = UNITS, uid: str = "", **more: Any) -> Object:
    metadata = {"name": name, "namespace": namespace, "uid": uid or f"uid-{name}", **more.pop("metadata", {})}
    return {"metadata": metadata, **more}


def a_unit(name: str, flavor: str = "f", phase: str = "Ready", stock: str = "", **spec: Any) -> Object:
    annotations = {Annotation.SOURCE_STOCK_UID: stock} if stock else {}
    spec = {"specName": flavor, **spec}
    return an_object(name, metadata={"annotations": annotations}, spec=spec, status={"phase": phase})


def a_stock_unit(name: str, flavor: str = "f", **metadata: Any) -> Object:
    return an_object(name, STOCK, spec={"specName": flavor}, status={"phase": "Ready"}, metadata=metadata)


def an_operation(kind: str, request: Object, target: str = "", **status: Any) -> Object:
    spec = {
        "operationID": request["operationID"],
        "type": kind,
        "request": json.dumps(request),
        "target": {"name": target},
    }
    return an_object(request["operationID"], spec=spec, status=status)


def consumed_operation(name: str, stock: str) -> Object:
    status = {"state": "Succeeded", "targetUID": f"uid-{name}", "stock": {"name": stock, "uid": stock}}
    return an_operation("CreateUnit", unit_request("f", name), name, **status)


def make_snapshot(units: list[Object], stock: list[Object], operations: list[Object], **fields: Any) -> Snapshot:
    by_id = {each["spec"]["operationID"]: each for each in operations}
    return Snapshot(ClusterSnapshot(stock, units, by_id), **fields)


def seeded(**counts: int) -> RequestHistory:
    history = RequestHistory()
    history.seeded.update(counts)
    return history


ONE_CONSUMED = make_snapshot([a_unit("a", stock="s1")], [a_stock_unit("s2")], [consumed_operation("a", "s1")])


def test_remaining_and_consumed_stock_is_conserved() -> None:
    assert list(stock_invariants.stock_violations(ONE_CONSUMED, seeded(f=2), ())) == []


@pytest.mark.parametrize(
    "snapshot",
    [
        make_snapshot([a_unit("a", stock="s1")], [], [consumed_operation("a", "s1")]),
        make_snapshot(
            [a_unit("a", stock="s1")], [a_stock_unit("s2"), a_stock_unit("s3")], [consumed_operation("a", "s1")]
        ),
        make_snapshot([], [a_stock_unit("s2")], [consumed_operation("a", "s1")]),
        make_snapshot(
            [a_unit("a", stock="s1"), a_unit("b", stock="s1")],
            [],
            [consumed_operation("a", "s1"), consumed_operation("b", "s1")],
        ),
        make_snapshot([a_unit("a", stock="s1")], [a_stock_unit("s2")], []),
    ],
    ids=["lost", "too much", "unit lost", "two units from one stock unit", "unit without operation"],
)
def test_lost_or_duplicated_stock_is_reported(snapshot: Snapshot) -> None:
    assert list(stock_invariants.stock_violations(snapshot, seeded(f=2), ()))


def test_stock_of_deleted_workers_must_be_returned() -> None:
    request = seed_request("fn", 1, "gpu-runtime:return-uid-w0")
    returned = an_operation("SeedStock", request, state="Succeeded")
    status = {"state": "Succeeded", "targetUID": "uid-fn-w0", "stock": {"uid": "s1"}}
    worker_created = an_operation("CreateUnit", unit_request("fn", "fn-w0"), "fn-w0", **status)
    template = a_unit("fn", "fn", "Empty", running=False)
    stock_returned = make_snapshot([template], [a_stock_unit("s2", "fn")], [worker_created, returned])
    assert list(stock_invariants.stock_violations(stock_returned, seeded(fn=1), ("fn",))) == []
    stock_lost = make_snapshot([template], [], [worker_created])
    assert list(stock_invariants.stock_violations(stock_lost, seeded(fn=1), ("fn",)))


def test_unfinished_seeding_is_reported() -> None:
    succeeded = an_operation("SeedStock", seed_request("f", 1), state="Succeeded")
    assert list(invariants.unfinished_operations(make_snapshot([], [], [succeeded]), ("f",))) == []
    running = an_operation("SeedStock", seed_request("f", 1), state="Running")
    assert list(invariants.unfinished_operations(make_snapshot([], [], [running]), ("f",)))


def requested_unit(**changes: Any) -> RequestHistory:
    history = RequestHistory()
    deletion_requested_at = changes.pop("deletion_requested_at", None)
    unit = Unit(created(response(201, 0, "a"), deletion_requested_at=deletion_requested_at))
    history.units["a"] = replace(unit, **changes)
    return history


@pytest.mark.parametrize(
    ("history", "units"),
    [
        (requested_unit(), [a_unit("a")]),
        (requested_unit(running=PossibleValues(latest=True, unconfirmed={False})), [a_unit("a", running=False)]),
        (requested_unit(mounts=PossibleValues(frozenset("d"))), [a_unit("a", storageMounts=[{"name": "d"}])]),
        (requested_unit(deletion_requested_at=1.0, deleted=True), []),
    ],
)
def test_units_that_match_the_callers_history_pass(history: RequestHistory, units: list[Object]) -> None:
    assert list(invariants.history_violations(make_snapshot(units, [], []), history)) == []


@pytest.mark.parametrize(
    ("history", "units"),
    [
        (requested_unit(), []),
        (requested_unit(), [a_unit("a", running=False)]),
        (requested_unit(), [a_unit("a", storageMounts=[{"name": "d"}])]),
        (requested_unit(deletion_requested_at=1.0, deleted=True), [a_unit("a")]),
    ],
    ids=["lost", "stopped without a request", "mounts without a request", "exists after its deletion"],
)
def test_units_that_differ_from_the_callers_history_are_reported(history: RequestHistory, units: list[Object]) -> None:
    assert list(invariants.history_violations(make_snapshot(units, [], []), history))


def a_storage(name: str, holder: str = "", status: str = "True") -> Object:
    spec = {"attachedTo": {"unit": holder}} if holder else {}
    return an_object(name, spec=spec, status={"conditions": [{"type": "Ready", "status": status}]})


@pytest.mark.parametrize(
    ("exists", "storages", "is_consistent"),
    [
        (PossibleValues(latest=True), {"d": a_storage("d")}, True),
        (PossibleValues(latest=False), {}, True),
        (PossibleValues(latest=False, unconfirmed={True}), {"d": a_storage("d")}, True),
        (PossibleValues(latest=True), {}, False),
        (PossibleValues(latest=False), {"d": a_storage("d")}, False),
        (PossibleValues(latest=True), {"d": a_storage("d", status="False")}, False),
        (PossibleValues(latest=True), {"d": a_storage("d", holder="missing-unit")}, False),
    ],
)
def test_storages_are_compared_with_the_callers_history(
    exists: PossibleValues[bool], storages: dict[str, Object], is_consistent: bool
) -> None:
    history = RequestHistory(storages={"d": Storage("d", exists)})
    violations = list(invariants.history_violations(make_snapshot([], [], [], storages=storages), history))
    assert (violations == []) is is_consistent


def a_pod(name: str, unit: str, *pvcs: str) -> Object:
    volumes = [{"persistentVolumeClaim": {"claimName": each}} for each in pvcs]
    return an_object(
        name, metadata={"labels": {Label.UNIT_UID: f"uid-{unit}", Label.UNIT: unit}}, spec={"volumes": volumes}
    )


def test_converged_snapshot_passes() -> None:
    ports = {"ports": [{"name": "http", "port": 80}]}
    units = [a_unit("a", template=ports), a_unit("b", phase="Empty", running=False)]
    children = {"deployments": [an_object("a"), an_object("b")], "services": [an_object("a")]}
    snapshot = make_snapshot(units, [], [], pods=[a_pod("p", "a")], **children)
    assert list(invariants.convergence_violations(snapshot)) == []


@pytest.mark.parametrize(
    "snapshot",
    [
        make_snapshot([a_unit("a", phase="Progressing")], [], [], deployments=[an_object("a")]),
        make_snapshot([a_unit("a", running=False)], [], [], deployments=[an_object("a")]),
        make_snapshot([a_unit("a")], [], []),
        make_snapshot([], [], [], deployments=[an_object("a")]),
        make_snapshot([], [], [], services=[an_object("a")]),
        make_snapshot([], [], [], pvcs=[an_object("a")]),
        make_snapshot([], [], [], pods=[a_pod("p", "a")]),
        make_snapshot([], [], [], storages={"d": a_storage("d")}),
    ],
    ids=[
        "not ready",
        "not stopped",
        "no deployment",
        "orphaned deployment",
        "orphaned service",
        "orphaned pvc",
        "orphaned pod",
        "no pvc",
    ],
)
def test_unconverged_snapshot_is_reported(snapshot: Snapshot) -> None:
    assert list(invariants.convergence_violations(snapshot))


EMPTY = dict.fromkeys(invariants.WORK_STREAMS, StreamBacklog(0, 0))


@pytest.mark.parametrize(
    ("streams", "is_idle", "disk_was_full"),
    [
        (EMPTY, True, False),
        (EMPTY | {"DISPATCH": StreamBacklog(1, 1)}, False, True),
        (EMPTY | {"DISPATCH": StreamBacklog(1, 0)}, False, False),
        (EMPTY | {"DISPATCH": StreamBacklog(1, 0)}, True, True),
        ({}, False, False),
    ],
)
def test_streams_are_idle_when_empty(streams: dict[str, StreamBacklog], is_idle: bool, disk_was_full: bool) -> None:
    snapshot = make_snapshot([a_unit("fn")], [], [], streams=streams)
    assert (list(invariants.idle_violations(snapshot, ("fn",), disk_was_full)) == []) is is_idle


def test_function_with_workers_is_not_idle() -> None:
    worker = a_unit("fn-w0", serverless={"workerOf": "fn"})
    snapshot = make_snapshot([worker], [], [], streams=EMPTY)
    assert list(invariants.idle_violations(snapshot, ("fn",), disk_was_full=False))


PAYLOAD = {"n": 1}


def a_result(state: str = "succeeded", **fields: Any) -> Object:
    return {"state": state, "payload": PAYLOAD, "timings": {"finishedAt": "1970-01-01T00:02:00Z"}, **fields}


def an_invocation(*results: Object, **changes: Any) -> Invocation:
    default = Invocation("i", "fn", {"payload": PAYLOAD, "timeoutSeconds": 60}, accepted=True, sent_at=10)
    invocation = replace(default, **changes)
    for result in results:
        invocation.record_view(result)
    return invocation


@pytest.mark.parametrize(
    "invocation",
    [
        an_invocation(a_result(), a_result(), sync_responses=[a_result()]),
        an_invocation(a_result("cancelled"), cancelled=True),
        an_invocation(a_result("expired")),
        an_invocation(a_result("dead_lettered", attempts=10)),
        an_invocation(accepted=False),
    ],
)
def test_invocation_with_one_explained_result_passes(invocation: Invocation) -> None:
    assert list(invariants.result_violations(invocation, 10, replies_may_be_lost=False)) == []


@pytest.mark.parametrize(
    "invocation",
    [
        an_invocation(),
        an_invocation(a_result(), a_result(attempts=2)),
        an_invocation(a_result(), {"state": "running"}),
        an_invocation(a_result(payload={"n": 2})),
        an_invocation(a_result("cancelled")),
        an_invocation(a_result("expired"), sent_at=100),
        an_invocation(a_result("dead_lettered", attempts=2)),
        an_invocation(a_result("failed")),
        an_invocation(a_result("expired"), sync_responses=[a_result()]),
    ],
    ids=[
        "no result",
        "changed result",
        "not terminal any more",
        "payload of another invocation",
        "cancelled without a request",
        "expired too early",
        "dead-lettered too early",
        "failed",
        "other sync response",
    ],
)
def test_invocation_without_one_explained_result_is_reported(invocation: Invocation) -> None:
    assert list(invariants.result_violations(invocation, 10, replies_may_be_lost=False))


def test_unknown_and_duplicate_results_are_reported() -> None:
    history = RequestHistory(invocations={"i": an_invocation()})
    assert list(invariants.unknown_results(["i"], history)) == []
    assert list(invariants.unknown_results(["j"], history))
    assert list(invariants.unknown_results(["i", "i"], history))


def process_status(restarts: int, should_run: bool = True) -> ProcessStatus:
    return ProcessStatus("api", 1, should_run, restarts, -9, "log")


def test_unexpected_process_exit_is_reported() -> None:
    assert list(invariants.unexpected_exits([process_status(3)], {"api": 2}, {"api": 1})) == []
    assert list(invariants.unexpected_exits([process_status(1, should_run=False)], {}, {})) == []
    assert list(invariants.unexpected_exits([process_status(3)], {"api": 2}, {}))


def test_executions_and_repeated_executions_are_counted() -> None:
    assert invariants.count_executions(["a", "b", "a", "a"]) == (4, 2)


def test_storage_mounted_by_two_units_is_reported() -> None:
    watch = ClusterWatch()
    watch.observe_pod("ADDED", a_pod("p", "a", "d"))
    watch.observe_pod("DELETED", a_pod("p", "a", "d"))
    watch.observe_pod("ADDED", a_pod("q", "b", "d"))
    watch.resync_pods([])  # the pod was deleted while the watch was interrupted
    watch.observe_pod("ADDED", a_pod("r", "c", "d"))
    assert watch.violations == []
    watch.observe_pod("ADDED", a_pod("s", "b", "d"))
    assert len(watch.violations) == 1


@pytest.mark.parametrize(("event", "violations"), [(None, 1), ("DELETED", 0)])
def test_two_units_from_one_stock_unit_are_reported(event: str | None, violations: int) -> None:
    origins = StockOrigins()
    origins.observe("ADDED", a_unit("a", stock="s"))
    origins.observe("MODIFIED", a_unit("a", stock="s"))
    if event:
        origins.observe(event, a_unit("a", stock="s"))
    origins.observe("ADDED", a_unit("b", stock="s"))
    assert len(origins.violations) == violations
