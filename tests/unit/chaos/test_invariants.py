"""Each check lets pass what is right, and finds what is wrong."""

import json
from typing import Any

import pytest

from gpu_runtime.contract.crd.well_known import Annotation, Label
from localcluster.supervisor_client import ProcessStatus
from tests.chaos import invariants
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


def created(*answers: RecordedResponse, deletion_asked: float | None = None) -> Operation:
    return Operation("make-a", "/units", unit_request("f", "a"), list(answers), deletion_asked)


CONSISTENT_OPERATIONS = [
    created(response(201, 0, "a"), response(200, 1, "a")),
    created(response(409, 0, code="no_stock"), response(201, 1, "a")),
    created(response(201, 0, "a"), response(410, 3), deletion_asked=2),
    created(response(201, 0, "a"), response(409, 1, code="operation_reused", other_body=True)),
    created(response(409, 0.1, code="no_stock"), response(201, 0, "a")),  # sent before the other one was answered
]
INCONSISTENT_OPERATIONS = {
    "twice": created(response(201, 0, "a"), response(201, 1, "a")),
    "another unit": created(response(201, 0, "a"), response(200, 1, "b")),
    "forgotten": created(response(201, 0, "a"), response(409, 1, code="no_stock")),
    "gone by itself": created(response(201, 0, "a"), response(410, 1)),
    "another body is taken": created(response(201, 0, "a"), response(200, 1, "a", other_body=True)),
    "another body is refused for another reason": created(response(409, 1, code="no_stock", other_body=True)),
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
    status = {"state": "Succeeded", "targetUID": f"uid-{name}", "stock": {"uid": stock}}
    return an_operation("CreateUnit", unit_request("f", name), name, **status)


def world(units: list[Object], stock: list[Object], operations: list[Object], **more: Any) -> Snapshot:
    return Snapshot(ClusterSnapshot(stock, units, {each["spec"]["operationID"]: each for each in operations}), **more)


def seeded(**counts: int) -> RequestHistory:
    history = RequestHistory()
    history.seeded.update(counts)
    return history


ONE_CONSUMED = world([a_unit("a", stock="s1")], [a_stock_unit("s2")], [consumed_operation("a", "s1")])


def test_remaining_and_consumed_stock_is_conserved() -> None:
    assert list(invariants.stock_violations(ONE_CONSUMED, seeded(f=2), ())) == []


@pytest.mark.parametrize(
    "found",
    [
        world([a_unit("a", stock="s1")], [], [consumed_operation("a", "s1")]),
        world([a_unit("a", stock="s1")], [a_stock_unit("s2"), a_stock_unit("s3")], [consumed_operation("a", "s1")]),
        world([], [a_stock_unit("s2")], [consumed_operation("a", "s1")]),
        world(
            [a_unit("a", stock="s1"), a_unit("b", stock="s1")],
            [],
            [consumed_operation("a", "s1"), consumed_operation("b", "s1")],
        ),
        world([a_unit("a", stock="s1")], [a_stock_unit("s2")], []),
    ],
    ids=["lost", "too much", "unit lost", "two units of one", "unit of nobody"],
)
def test_lost_or_duplicated_stock_is_reported(found: Snapshot) -> None:
    assert list(invariants.stock_violations(found, seeded(f=2), ()))


def test_stock_of_deleted_workers_must_be_returned() -> None:
    request = seed_request("fn", 1, "return-uid-w0")
    back = an_operation("SeedStock", request, state="Succeeded")
    status = {"state": "Succeeded", "targetUID": "uid-fn-w0", "stock": {"uid": "s1"}}
    taken = an_operation("CreateUnit", unit_request("fn", "fn-w0"), "fn-w0", **status)
    template = a_unit("fn", "fn", "Empty", running=False)
    rested = world([template], [a_stock_unit("s2", "fn")], [taken, back])
    assert list(invariants.stock_violations(rested, seeded(fn=1), ("fn",))) == []
    assert list(invariants.stock_violations(world([template], [], [taken]), seeded(fn=1), ("fn",)))


def test_unfinished_seeding_is_reported() -> None:
    done = an_operation("SeedStock", seed_request("f", 1), state="Succeeded")
    assert list(invariants.unfinished_operations(world([], [], [done]), ("f",))) == []
    begun = an_operation("SeedStock", seed_request("f", 1), state="Running")
    assert list(invariants.unfinished_operations(world([], [], [begun]), ("f",)))


def requested_unit(**changes: Any) -> RequestHistory:
    history = RequestHistory()
    unit = Unit(created(response(201, 0, "a"), deletion_asked=changes.pop("deletion_asked", None)))
    for name, value in changes.items():
        setattr(unit, name, value)
    history.units["a"] = unit
    return history


@pytest.mark.parametrize(
    ("history", "units"),
    [
        (requested_unit(), [a_unit("a")]),
        (requested_unit(running=PossibleValues(latest=True, unconfirmed={False})), [a_unit("a", running=False)]),
        (requested_unit(mounts=PossibleValues(frozenset("d"))), [a_unit("a", storageMounts=[{"name": "d"}])]),
        (requested_unit(deletion_asked=1.0, gone=True), []),
    ],
)
def test_units_that_match_the_callers_history_pass(history: RequestHistory, units: list[Object]) -> None:
    assert list(invariants.history_violations(world(units, [], []), history)) == []


@pytest.mark.parametrize(
    ("history", "units"),
    [
        (requested_unit(), []),
        (requested_unit(), [a_unit("a", running=False)]),
        (requested_unit(), [a_unit("a", storageMounts=[{"name": "d"}])]),
        (requested_unit(deletion_asked=1.0, gone=True), [a_unit("a")]),
    ],
    ids=["lost", "stopped by nobody", "mounts what nobody asked for", "back again"],
)
def test_units_that_differ_from_the_callers_history_are_reported(history: RequestHistory, units: list[Object]) -> None:
    assert list(invariants.history_violations(world(units, [], []), history))


def a_storage(name: str, holder: str = "", status: str = "True") -> Object:
    spec = {"attachedTo": {"unit": holder}} if holder else {}
    return an_object(name, spec=spec, status={"conditions": [{"type": "Ready", "status": status}]})


@pytest.mark.parametrize(
    ("there", "found", "is_right"),
    [
        (PossibleValues(latest=True), {"d": a_storage("d")}, True),
        (PossibleValues(latest=False), {}, True),
        (PossibleValues(latest=False, unconfirmed={True}), {"d": a_storage("d")}, True),
        (PossibleValues(latest=True), {}, False),
        (PossibleValues(latest=False), {"d": a_storage("d")}, False),
        (PossibleValues(latest=True), {"d": a_storage("d", status="False")}, False),
        (PossibleValues(latest=True), {"d": a_storage("d", holder="nobody")}, False),
    ],
)
def test_storages_are_compared_with_the_callers_history(
    there: PossibleValues[bool], found: dict[str, Object], is_right: bool
) -> None:
    history = RequestHistory(storages={"d": Storage("d", there)})
    assert (list(invariants.history_violations(world([], [], [], storages=found), history)) == []) is is_right


def a_pod(name: str, unit: str, *claims: str) -> Object:
    volumes = [{"persistentVolumeClaim": {"claimName": each}} for each in claims]
    return an_object(
        name, metadata={"labels": {Label.UNIT_UID: f"uid-{unit}", Label.UNIT: unit}}, spec={"volumes": volumes}
    )


def test_converged_snapshot_passes() -> None:
    ports = {"ports": [{"name": "http", "port": 80}]}
    units = [a_unit("a", template=ports), a_unit("b", phase="Empty", running=False)]
    children = {"deployments": [an_object("a"), an_object("b")], "services": [an_object("a")]}
    found = world(units, [], [], pods=[a_pod("p", "a")], **children)
    assert list(invariants.convergence_violations(found)) == []


@pytest.mark.parametrize(
    "found",
    [
        world([a_unit("a", phase="Progressing")], [], [], deployments=[an_object("a")]),
        world([a_unit("a", running=False)], [], [], deployments=[an_object("a")]),
        world([a_unit("a")], [], []),
        world([], [], [], deployments=[an_object("a")]),
        world([], [], [], services=[an_object("a")]),
        world([], [], [], claims=[an_object("a")]),
        world([], [], [], pods=[a_pod("p", "a")]),
        world([], [], [], storages={"d": a_storage("d")}),
    ],
    ids=["not ready", "not stopped", "no deployment", "deployment", "service", "claim", "pod", "no claim"],
)
def test_unconverged_snapshot_is_reported(found: Snapshot) -> None:
    assert list(invariants.convergence_violations(found))


EMPTY = dict.fromkeys(invariants.WORK_STREAMS, StreamBacklog(0, 0))


@pytest.mark.parametrize(
    ("queues", "is_right", "disk_was_full"),
    [
        (EMPTY, True, False),
        (EMPTY | {"DISPATCH": StreamBacklog(1, 1)}, False, True),
        (EMPTY | {"DISPATCH": StreamBacklog(1, 0)}, False, False),
        (EMPTY | {"DISPATCH": StreamBacklog(1, 0)}, True, True),
        ({}, False, False),
    ],
)
def test_streams_are_idle_when_empty(queues: dict[str, StreamBacklog], is_right: bool, disk_was_full: bool) -> None:
    assert (
        list(invariants.idle_violations(world([a_unit("fn")], [], [], queues=queues), ("fn",), disk_was_full)) == []
    ) is is_right


def test_function_with_workers_is_not_idle() -> None:
    worker = a_unit("fn-w0", serverless={"workerOf": "fn"})
    assert list(invariants.idle_violations(world([worker], [], [], queues=EMPTY), ("fn",), disk_was_full=False))


PAYLOAD = {"n": 1}


def an_end(state: str = "succeeded", **more: Any) -> Object:
    return {"state": state, "payload": PAYLOAD, "timings": {"finishedAt": "1970-01-01T00:02:00Z"}, **more}


def a_call(*ends: Object, **more: Any) -> Invocation:
    invocation = Invocation("i", "fn", {"payload": PAYLOAD, "timeoutSeconds": 60}, accepted=True, sent_at=10)
    for name, value in more.items():
        setattr(invocation, name, value)
    for end in ends:
        invocation.record_view(end)
    return invocation


@pytest.mark.parametrize(
    "call",
    [
        a_call(an_end(), an_end(), answers=[an_end()]),
        a_call(an_end("cancelled"), cancelled=True),
        a_call(an_end("expired")),
        a_call(an_end("dead_lettered", attempts=10)),
        a_call(accepted=False),
    ],
)
def test_invocation_with_one_explained_result_passes(call: Invocation) -> None:
    assert list(invariants.result_violations(call, 10, replies_may_be_lost=False)) == []


@pytest.mark.parametrize(
    "call",
    [
        a_call(),
        a_call(an_end(), an_end(attempts=2)),
        a_call(an_end(), {"state": "running"}),
        a_call(an_end(payload={"n": 2})),
        a_call(an_end("cancelled")),
        a_call(an_end("expired"), sent=100),
        a_call(an_end("dead_lettered", attempts=2)),
        a_call(an_end("failed")),
        a_call(an_end("expired"), answers=[an_end()]),
    ],
    ids=["lost", "changed", "undone", "another's", "by nobody", "too soon", "given up", "failed", "other answer"],
)
def test_invocation_without_one_explained_result_is_reported(call: Invocation) -> None:
    assert list(invariants.result_violations(call, 10, replies_may_be_lost=False))


def test_unknown_and_duplicate_results_are_reported() -> None:
    history = RequestHistory(invocations={"i": a_call()})
    assert list(invariants.unknown_results(["i"], history)) == []
    assert list(invariants.unknown_results(["j"], history))
    assert list(invariants.unknown_results(["i", "i"], history))


def running(restarts: int, wanted: bool = True) -> ProcessStatus:
    return ProcessStatus("api", 1, wanted, restarts, -9, "log")


def test_unexpected_process_exit_is_reported() -> None:
    assert list(invariants.unexpected_exits([running(3)], {"api": 2}, {"api": 1})) == []
    assert list(invariants.unexpected_exits([running(1, wanted=False)], {}, {})) == []
    assert list(invariants.unexpected_exits([running(3)], {"api": 2}, {}))


def test_executions_and_repeated_executions_are_counted() -> None:
    assert invariants.count_executions(["a", "b", "a", "a"]) == (4, 2)


def test_storage_mounted_by_two_units_is_reported() -> None:
    watch = ClusterWatch()
    watch.observe_pod("ADDED", a_pod("p", "a", "d"))
    watch.observe_pod("DELETED", a_pod("p", "a", "d"))
    watch.observe_pod("ADDED", a_pod("q", "b", "d"))
    watch.resync_pods([])  # it went while nobody could see
    watch.observe_pod("ADDED", a_pod("r", "c", "d"))
    assert watch.violations == []
    watch.observe_pod("ADDED", a_pod("s", "b", "d"))
    assert len(watch.violations) == 1


@pytest.mark.parametrize(("between", "found"), [(None, 1), ("DELETED", 0)])
def test_two_units_from_one_stock_unit_are_reported(between: str | None, found: int) -> None:
    origins = StockOrigins()
    origins.observe("ADDED", a_unit("a", stock="s"))
    origins.observe("MODIFIED", a_unit("a", stock="s"))
    if between:
        origins.observe(between, a_unit("a", stock="s"))
    origins.observe("ADDED", a_unit("b", stock="s"))
    assert len(origins.violations) == found
