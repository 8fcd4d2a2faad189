"""What must hold, whatever happened: each check takes what was seen and heard, and gives all that is wrong. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from gpu_runtime.contract.crd.well_known import Label
from localcluster.supervisor_client import ProcessStatus
from tests.chaos.request_history import Invocation, Operation, RequestHistory, Unit
from tests.integration.controller_manager.conftest import Object, ready_condition
from tests.integration.runtime_api.live_platform import ClusterSnapshot, operation_state, recorded_request
from tests.integration.runtime_api.stock_conservation import conservation_errors
from tests.integration.runtime_api.storages.storage_observer import find_orphaned_attachments

WORK_STREAMS = ("INVOKE", "DISPATCH", "RESULT")
RETURN_OPERATION_PREFIX = "return-"
"""What the operationIDs of stock that comes back from a worker begin with."""


@dataclass(frozen=True)
class StreamBacklog:
    messages: int
    pending: int
    """How many of them are to be delivered, or are in somebody's hand."""


@dataclass(frozen=True)
class Snapshot:
    """What lies in the cluster and in the queues."""

    cluster: ClusterSnapshot
    storages: Mapping[str, Object] = field(default_factory=dict)
    pods: Iterable[Object] = ()
    deployments: Iterable[Object] = ()
    services: Iterable[Object] = ()
    pvcs: Iterable[Object] = ()
    streams: Mapping[str, StreamBacklog] = field(default_factory=dict)
    """By the end of their names."""


def operation_id_violations(operation: Operation) -> Iterator[str]:
    """An operationID stands for one request, which is carried out once."""
    own = [each for each in operation.responses if not each.changed_body]
    if wrong := [str(each) for each in operation.responses if each.changed_body and each.code != "operation_reused"]:
        yield f"{operation.id}: another body was answered {wrong}"
    if len(first := [str(each) for each in own if each.status in (201, 202)]) > 1:
        yield f"{operation.id}: carried out more than once: {first}"
    if len(made := {each.identity for each in own if each.status in (200, 201)}) > 1:
        yield f"{operation.id}: stands for {sorted(made)}"
    known = min((each.received_at for each in own if each.status in (200, 201, 202)), default=None)
    for each in own:
        if (
            known is not None
            and each.sent_at > known
            and each.status not in (200, *_allowed_deleted_status(operation, each.received_at))
        ):
            yield f"{operation.id}: had succeeded, and was then answered {each}"


def _allowed_deleted_status(operation: Operation, when: float) -> tuple[int, ...]:
    asked = operation.deletion_requested_at
    return (410,) if asked is not None and asked < when else ()


def stock_violations(world: Snapshot, history: RequestHistory, functions: Collection[str]) -> Iterator[str]:
    """Stock seeded is stock left or one unit's origin. What workers were made from has come back."""
    deleted = {unit.name for unit in history.units.values() if unit.operation.deletion_requested_at is not None}
    for flavor, seeded in history.seeded.items():
        if flavor not in functions:
            yield from conservation_errors(world.cluster, {flavor: seeded}, deleted)
            continue
        seedings = world.cluster.operations_of("SeedStock", flavor)
        back = sum(each["spec"]["operationID"].startswith(RETURN_OPERATION_PREFIX) for each in seedings)
        workers = {each["spec"]["target"]["name"] for each in world.cluster.operations_of("CreateUnit", flavor)}
        made = [each for each in world.cluster.units if each["metadata"]["name"] not in functions]
        yield from conservation_errors(replace(world.cluster, units=made), {flavor: seeded + back}, workers)
        if (left := len(world.cluster.stock_of(flavor))) != seeded:
            yield f"{flavor}: {seeded} seeded, and without any worker {left} are left"


def unfinished_operations(world: Snapshot, flavors: Collection[str]) -> Iterator[str]:
    """No seeding and no handoff stays half-done."""
    for each in world.cluster.operations.values():
        kind, flavor = each["spec"]["type"], recorded_request(each)["specName"]
        if flavor in flavors and kind == "SeedStock" and operation_state(each) != "Succeeded":
            yield f"{each['spec']['operationID']} is {operation_state(each)}"


def history_violations(world: Snapshot, history: RequestHistory) -> Iterator[str]:
    """Units and storages are there or gone, run or rest, and mount what they are to mount, as callers were told."""
    there = {unit["metadata"]["name"]: unit for unit in world.cluster.units}
    for unit in history.units.values():
        yield from _unit_history_violations(unit, there.get(unit.name))
    for name, storage in history.storages.items():
        found = world.storages.get(name)
        if (found is not None) not in storage.exists.values:
            yield f"storage {name} is {'there' if found else 'gone'}, unlike its callers were told"
        elif found and ready_condition(found).get("status") != "True":
            yield f"storage {name} is not Ready: {ready_condition(found).get('reason')} {ready_condition(found).get('message')}"
    yield from (
        f"storage {name} is attached to nothing" for name in find_orphaned_attachments(world.storages, world.cluster)
    )


def _unit_history_violations(unit: Unit, found: Object | None) -> Iterator[str]:
    if found is None:
        if unit.operation.succeeded and unit.operation.deletion_requested_at is None:
            yield f"unit {unit.name} is lost"
        return
    if unit.deleted:
        yield f"unit {unit.name} was deleted and is there"
        return
    spec = found["spec"]
    if spec.get("running", True) not in unit.running.values:
        yield f"unit {unit.name}: running is {spec.get('running', True)}"
    if (mounts := frozenset(each["name"] for each in spec.get("storageMounts", ()))) not in unit.mounts.values:
        yield f"unit {unit.name} mounts {sorted(mounts)}, not one of {list(map(sorted, unit.mounts.values))}"


def convergence_violations(world: Snapshot) -> Iterator[str]:
    """Every unit is in the phase that it is to be in, and nothing belongs to nobody."""
    units = [*world.cluster.units, *world.cluster.stock]
    for unit in units:
        wanted = "Ready" if unit["spec"].get("running", True) else "Empty"
        if (phase := unit.get("status", {}).get("phase")) != wanted:
            about = f"{ready_condition(unit).get('reason')} {ready_condition(unit).get('message')}"
            yield f"unit {unit['metadata']['name']} is {phase} instead of {wanted}: {about}"
    running = {unit["metadata"]["uid"] for unit in units if unit["spec"].get("running", True)}
    for pod in world.pods:
        if pod["metadata"].get("labels", {}).get(Label.UNIT_UID) not in running:
            yield f"pod {pod['metadata']['namespace']}/{pod['metadata']['name']} belongs to nobody"
    yield from _child_violations(world, units)


def _child_violations(world: Snapshot, units: Iterable[Object]) -> Iterator[str]:
    every = {_key(unit) for unit in units}
    exposed = {_key(unit) for unit in world.cluster.units if unit["spec"].get("template", {}).get("ports")}
    for kind, found, owners in (
        ("deployment", world.deployments, every),
        ("service", world.services, exposed),
        ("claim", world.pvcs, set(map(_key, world.storages.values()))),
    ):
        there = set(map(_key, found))
        yield from (f"{kind} {each} belongs to nobody" for each in sorted(there - owners))
        yield from (f"{kind} {each} is missing" for each in sorted(owners - there))


def _key(found: Object) -> str:
    return f"{found['metadata']['namespace']}/{found['metadata']['name']}"


def idle_violations(world: Snapshot, functions: Collection[str], disk_was_full: bool) -> Iterator[str]:
    """Functions are at zero and queues are empty.

    A NATS server that is killed while its disk is full may keep a message that was acknowledged: nobody gets it any
    more. Whether anything was lost is not seen here, but by whether every invocation has ended.
    """
    for unit in world.cluster.units:
        serverless = unit["spec"].get("serverless") or {}
        if serverless.get("workerOf") in functions:
            yield f"worker {unit['metadata']['name']} is still there"
    for name in WORK_STREAMS:
        queue = world.streams.get(name)
        if queue is None:
            yield f"nobody knows what waits in {name}"
        elif queue.pending or (queue.messages and not disk_was_full):
            yield f"{name} has {queue.messages} messages, of which {queue.pending} wait"


def result_violations(invocation: Invocation, max_deliveries: int, replies_may_be_lost: bool) -> Iterator[str]:
    """An accepted invocation ends once, for a reason, with its own answer."""
    if not invocation.accepted:
        return
    yield from (f"{invocation.id}: {each}" for each in invocation.violations)
    if not invocation.terminal_views:
        yield f"{invocation.id}: has not ended"
        return
    if len(invocation.terminal_views) > 1:
        yield f"{invocation.id}: its end changed: {invocation.terminal_views}"
    yield from (
        f"{invocation.id}: {each}"
        for each in _unexplained_result(invocation, invocation.terminal_views[0], max_deliveries)
    )
    for answer in invocation.sync_responses:
        yield from (
            f"{invocation.id}, as answered: {each}" for each in _unexplained_result(invocation, answer, max_deliveries)
        )
        if answer["state"] != invocation.terminal_views[0]["state"] and not replies_may_be_lost:
            yield f"{invocation.id}: answered {answer}, stored {invocation.terminal_views[0]}"


def _unexplained_result(invocation: Invocation, end: Object, attempts: int) -> Iterator[str]:
    match end["state"]:
        case "succeeded":
            if end.get("payload") != invocation.request["payload"]:
                yield f"has somebody else's answer: {end}"
        case "cancelled":
            if not invocation.cancelled:
                yield f"cancelled by nobody: {end}"
        case "expired":
            lasted = _finished_at(end) - invocation.sent_at
            if lasted < invocation.request["timeoutSeconds"]:
                yield f"expired after {lasted:.1f} s of {invocation.request['timeoutSeconds']} s: {end}"
        case "dead_lettered":
            if (end.get("attempts") or 0) < attempts:
                yield f"given up after {end.get('attempts')} attempts: {end}"
        case _:
            yield f"ended as nobody expects: {end}"


def _finished_at(end: Object) -> float:
    return datetime.fromisoformat(end["timings"]["finishedAt"]).timestamp()


def unknown_results(listed: Iterable[str], history: RequestHistory) -> Iterator[str]:
    """Every stored result is of an invocation that somebody asked for, and stored once."""
    for id_, times in Counter(listed).items():
        if id_ not in history.invocations:
            yield f"a result of {id_}, which nobody asked for"
        if times > 1:
            yield f"{times} results of {id_}"


def unexpected_exits(
    processes: Iterable[ProcessStatus], before: Mapping[str, int], killed: Mapping[str, int]
) -> Iterator[str]:
    """No process ends unless it is killed or told to."""
    for each in processes:
        ends = each.restarts - before.get(each.name, 0)
        if ends > killed.get(each.name, 0) + (not each.should_run):
            yield f"{each.name} has ended by itself; last with {each.last_exit_code}"


def count_executions(lines: Iterable[str]) -> tuple[int, int]:
    """How often functions were run, and how often again."""
    counted = Counter(lines)
    return counted.total(), counted.total() - len(counted)
