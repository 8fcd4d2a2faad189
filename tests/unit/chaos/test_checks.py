"""Each check lets pass what is right, and finds what is wrong."""

import json
from typing import Any

import pytest

from gpu_runtime.contract.crd.well_known import Annotation, Label
from localcluster.supervisor_client import Running
from tests.chaos import checks
from tests.chaos.checks import Queue, World
from tests.chaos.history import History, Invocation, Operation, Possible, Said, Storage, Unit
from tests.chaos.watching import Origins, Watch
from tests.integration.controller_manager.conftest import Object
from tests.integration.runtime_api.live import Seen, seed_request, unit_request

UNITS, STOCK = "runtime-instance", "runtime-stock"


def said(status: int, sent: float = 0, identity: str = "", code: str = "", other_body: bool = False) -> Said:
    return Said(sent, sent + 0.5, status, code, identity, other_body)


def created(*answers: Said, deletion_asked: float | None = None) -> Operation:
    return Operation("make-a", "/units", unit_request("f", "a"), list(answers), deletion_asked)


RIGHT = [
    created(said(201, 0, "a"), said(200, 1, "a")),
    created(said(409, 0, code="no_stock"), said(201, 1, "a")),
    created(said(201, 0, "a"), said(410, 3), deletion_asked=2),
    created(said(201, 0, "a"), said(409, 1, code="operation_reused", other_body=True)),
    created(said(409, 0.1, code="no_stock"), said(201, 0, "a")),  # sent before the other one was answered
]
WRONG = {
    "twice": created(said(201, 0, "a"), said(201, 1, "a")),
    "another unit": created(said(201, 0, "a"), said(200, 1, "b")),
    "forgotten": created(said(201, 0, "a"), said(409, 1, code="no_stock")),
    "gone by itself": created(said(201, 0, "a"), said(410, 1)),
    "another body is taken": created(said(201, 0, "a"), said(200, 1, "a", other_body=True)),
    "another body is refused for another reason": created(said(409, 1, code="no_stock", other_body=True)),
}


@pytest.mark.parametrize("operation", RIGHT)
def test_an_operation_id_means_one_thing(operation: Operation) -> None:
    assert list(checks.one_meaning(operation)) == []


@pytest.mark.parametrize("name", WRONG)
def test_an_operation_id_that_means_two_things_is_found(name: str) -> None:
    assert list(checks.one_meaning(WRONG[name]))


def an_object(name: str, namespace: str = UNITS, uid: str = "", **more: Any) -> Object:
    metadata = {"name": name, "namespace": namespace, "uid": uid or f"uid-{name}", **more.pop("metadata", {})}
    return {"metadata": metadata, **more}


def a_unit(name: str, flavour: str = "f", phase: str = "Ready", stock: str = "", **spec: Any) -> Object:
    annotations = {Annotation.SOURCE_STOCK_UID: stock} if stock else {}
    spec = {"specName": flavour, **spec}
    return an_object(name, metadata={"annotations": annotations}, spec=spec, status={"phase": phase})


def a_stock_unit(name: str, flavour: str = "f", **metadata: Any) -> Object:
    return an_object(name, STOCK, spec={"specName": flavour}, status={"phase": "Ready"}, metadata=metadata)


def an_operation(kind: str, request: Object, target: str = "", **status: Any) -> Object:
    spec = {
        "operationID": request["operationID"],
        "type": kind,
        "request": json.dumps(request),
        "target": {"name": target},
    }
    return an_object(request["operationID"], spec=spec, status=status)


def handed_over(name: str, stock: str) -> Object:
    status = {"state": "Succeeded", "targetUID": f"uid-{name}", "stock": {"uid": stock}}
    return an_operation("CreateUnit", unit_request("f", name), name, **status)


def world(units: list[Object], stock: list[Object], operations: list[Object], **more: Any) -> World:
    return World(Seen(stock, units, {each["spec"]["operationID"]: each for each in operations}), **more)


def seeded(**counts: int) -> History:
    history = History()
    history.seeded.update(counts)
    return history


ONE_TAKEN = world([a_unit("a", stock="s1")], [a_stock_unit("s2")], [handed_over("a", "s1")])


def test_stock_that_is_left_or_became_a_unit_is_conserved() -> None:
    assert list(checks.conserved(ONE_TAKEN, seeded(f=2), ())) == []


@pytest.mark.parametrize(
    "found",
    [
        world([a_unit("a", stock="s1")], [], [handed_over("a", "s1")]),
        world([a_unit("a", stock="s1")], [a_stock_unit("s2"), a_stock_unit("s3")], [handed_over("a", "s1")]),
        world([], [a_stock_unit("s2")], [handed_over("a", "s1")]),
        world([a_unit("a", stock="s1"), a_unit("b", stock="s1")], [], [handed_over("a", "s1"), handed_over("b", "s1")]),
        world([a_unit("a", stock="s1")], [a_stock_unit("s2")], []),
    ],
    ids=["lost", "too much", "unit lost", "two units of one", "unit of nobody"],
)
def test_stock_that_is_not_conserved_is_found(found: World) -> None:
    assert list(checks.conserved(found, seeded(f=2), ()))


def test_what_a_worker_was_made_from_must_have_come_back() -> None:
    request = seed_request("fn", 1, "return-uid-w0")
    back = an_operation("SeedStock", request, state="Succeeded")
    status = {"state": "Succeeded", "targetUID": "uid-fn-w0", "stock": {"uid": "s1"}}
    taken = an_operation("CreateUnit", unit_request("fn", "fn-w0"), "fn-w0", **status)
    template = a_unit("fn", "fn", "Empty", running=False)
    rested = world([template], [a_stock_unit("s2", "fn")], [taken, back])
    assert list(checks.conserved(rested, seeded(fn=1), ("fn",))) == []
    assert list(checks.conserved(world([template], [], [taken]), seeded(fn=1), ("fn",)))


def test_a_seeding_that_stays_half_done_is_found() -> None:
    done = an_operation("SeedStock", seed_request("f", 1), state="Succeeded")
    assert list(checks.finished(world([], [], [done]), ("f",))) == []
    begun = an_operation("SeedStock", seed_request("f", 1), state="Running")
    assert list(checks.finished(world([], [], [begun]), ("f",)))


def asked_for(**changes: Any) -> History:
    history = History()
    unit = Unit(created(said(201, 0, "a"), deletion_asked=changes.pop("deletion_asked", None)))
    for name, value in changes.items():
        setattr(unit, name, value)
    history.units["a"] = unit
    return history


@pytest.mark.parametrize(
    ("history", "units"),
    [
        (asked_for(), [a_unit("a")]),
        (asked_for(running=Possible(last=True, doubts={False})), [a_unit("a", running=False)]),
        (asked_for(mounts=Possible(frozenset("d"))), [a_unit("a", storageMounts=[{"name": "d"}])]),
        (asked_for(deletion_asked=1.0, gone=True), []),
    ],
)
def test_units_are_as_callers_were_told(history: History, units: list[Object]) -> None:
    assert list(checks.as_asked(world(units, [], []), history)) == []


@pytest.mark.parametrize(
    ("history", "units"),
    [
        (asked_for(), []),
        (asked_for(), [a_unit("a", running=False)]),
        (asked_for(), [a_unit("a", storageMounts=[{"name": "d"}])]),
        (asked_for(deletion_asked=1.0, gone=True), [a_unit("a")]),
    ],
    ids=["lost", "stopped by nobody", "mounts what nobody asked for", "back again"],
)
def test_units_that_are_not_as_callers_were_told_are_found(history: History, units: list[Object]) -> None:
    assert list(checks.as_asked(world(units, [], []), history))


def a_storage(name: str, holder: str = "", status: str = "True") -> Object:
    spec = {"attachedTo": {"unit": holder}} if holder else {}
    return an_object(name, spec=spec, status={"conditions": [{"type": "Ready", "status": status}]})


@pytest.mark.parametrize(
    ("there", "found", "is_right"),
    [
        (Possible(last=True), {"d": a_storage("d")}, True),
        (Possible(last=False), {}, True),
        (Possible(last=False, doubts={True}), {"d": a_storage("d")}, True),
        (Possible(last=True), {}, False),
        (Possible(last=False), {"d": a_storage("d")}, False),
        (Possible(last=True), {"d": a_storage("d", status="False")}, False),
        (Possible(last=True), {"d": a_storage("d", holder="nobody")}, False),
    ],
)
def test_storages_are_as_callers_were_told(there: Possible[bool], found: dict[str, Object], is_right: bool) -> None:
    history = History(storages={"d": Storage("d", there)})
    assert (list(checks.as_asked(world([], [], [], storages=found), history)) == []) is is_right


def a_pod(name: str, unit: str, *claims: str) -> Object:
    volumes = [{"persistentVolumeClaim": {"claimName": each}} for each in claims]
    return an_object(
        name, metadata={"labels": {Label.UNIT_UID: f"uid-{unit}", Label.UNIT: unit}}, spec={"volumes": volumes}
    )


def test_a_platform_in_which_everything_has_its_place_has_converged() -> None:
    ports = {"ports": [{"name": "http", "port": 80}]}
    units = [a_unit("a", template=ports), a_unit("b", phase="Empty", running=False)]
    children = {"deployments": [an_object("a"), an_object("b")], "services": [an_object("a")]}
    found = world(units, [], [], pods=[a_pod("p", "a")], **children)
    assert list(checks.converged(found)) == []


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
def test_what_has_not_converged_is_found(found: World) -> None:
    assert list(checks.converged(found))


EMPTY = dict.fromkeys(checks.QUEUES, Queue(0, 0))


@pytest.mark.parametrize(
    ("queues", "is_right", "disk_was_full"),
    [
        (EMPTY, True, False),
        (EMPTY | {"DISPATCH": Queue(1, 1)}, False, True),
        (EMPTY | {"DISPATCH": Queue(1, 0)}, False, False),
        (EMPTY | {"DISPATCH": Queue(1, 0)}, True, True),
        ({}, False, False),
    ],
)
def test_queues_without_messages_are_at_rest(queues: dict[str, Queue], is_right: bool, disk_was_full: bool) -> None:
    assert (
        list(checks.at_rest(world([a_unit("fn")], [], [], queues=queues), ("fn",), disk_was_full)) == []
    ) is is_right


def test_a_function_with_workers_is_not_at_rest() -> None:
    worker = a_unit("fn-w0", serverless={"workerOf": "fn"})
    assert list(checks.at_rest(world([worker], [], [], queues=EMPTY), ("fn",), disk_was_full=False))


PAYLOAD = {"n": 1}


def an_end(state: str = "succeeded", **more: Any) -> Object:
    return {"state": state, "payload": PAYLOAD, "timings": {"finishedAt": "1970-01-01T00:02:00Z"}, **more}


def a_call(*ends: Object, **more: Any) -> Invocation:
    invocation = Invocation("i", "fn", {"payload": PAYLOAD, "timeoutSeconds": 60}, accepted=True, sent=10)
    for name, value in more.items():
        setattr(invocation, name, value)
    for end in ends:
        invocation.look_up(end)
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
def test_an_invocation_ends_once_and_for_a_reason(call: Invocation) -> None:
    assert list(checks.one_end(call, 10, replies_may_be_lost=False)) == []


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
def test_an_invocation_that_ends_otherwise_is_found(call: Invocation) -> None:
    assert list(checks.one_end(call, 10, replies_may_be_lost=False))


def test_a_result_that_nobody_asked_for_or_that_is_there_twice_is_found() -> None:
    history = History(invocations={"i": a_call()})
    assert list(checks.none_unknown(["i"], history)) == []
    assert list(checks.none_unknown(["j"], history))
    assert list(checks.none_unknown(["i", "i"], history))


def running(restarts: int, wanted: bool = True) -> Running:
    return Running("api", 1, wanted, restarts, -9, "log")


def test_a_process_that_ends_by_itself_is_found() -> None:
    assert list(checks.unexpected([running(3)], {"api": 2}, {"api": 1})) == []
    assert list(checks.unexpected([running(1, wanted=False)], {}, {})) == []
    assert list(checks.unexpected([running(3)], {"api": 2}, {}))


def test_executions_are_counted_and_so_are_those_of_what_had_run_before() -> None:
    assert checks.executions(["a", "b", "a", "a"]) == (4, 2)


def test_one_storage_in_the_pods_of_two_units_is_found_while_it_is_so() -> None:
    watch = Watch()
    watch.note_pod("ADDED", a_pod("p", "a", "d"))
    watch.note_pod("DELETED", a_pod("p", "a", "d"))
    watch.note_pod("ADDED", a_pod("q", "b", "d"))
    watch.all_pods([])  # it went while nobody could see
    watch.note_pod("ADDED", a_pod("r", "c", "d"))
    assert watch.violations == []
    watch.note_pod("ADDED", a_pod("s", "b", "d"))
    assert len(watch.violations) == 1


@pytest.mark.parametrize(("between", "found"), [(None, 1), ("DELETED", 0)])
def test_two_units_of_one_stock_are_found_while_both_are_there(between: str | None, found: int) -> None:
    origins = Origins()
    origins.take_note("ADDED", a_unit("a", stock="s"))
    origins.take_note("MODIFIED", a_unit("a", stock="s"))
    if between:
        origins.take_note(between, a_unit("a", stock="s"))
    origins.take_note("ADDED", a_unit("b", stock="s"))
    assert len(origins.shared) == found
