"""Checks the invariants of the system. Each check is a pure function of recorded facts and returns all violations."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from gpu_runtime.contract.crd.well_known import Label, pool_child_name
from localcluster.supervisor_client import ProcessStatus
from tests.chaos.request_history import Invocation, Operation, RequestHistory, Unit
from tests.integration.controller_manager.conftest import Object, ready_condition
from tests.integration.runtime_api.live_platform import ClusterSnapshot, operation_state, recorded_request
from tests.integration.runtime_api.storages.storage_observer import find_orphaned_attachments

WORK_STREAMS = ("INVOKE", "DISPATCH", "RESULT")


@dataclass(frozen=True)
class StreamBacklog:
    messages: int
    pending: int
    """How many of the messages are still to be delivered, or are delivered and not acknowledged."""


@dataclass(frozen=True)
class Snapshot:
    """The objects of the cluster and the backlog of the streams."""

    cluster: ClusterSnapshot
    storages: Mapping[str, Object] = field(default_factory=dict)
    pods: Iterable[Object] = ()
    deployments: Iterable[Object] = ()
    replica_sets: Iterable[Object] = ()
    services: Iterable[Object] = ()
    pvcs: Iterable[Object] = ()
    pools: Iterable[Object] = ()
    streams: Mapping[str, StreamBacklog] = field(default_factory=dict)
    """The backlogs, by the last part of the stream name."""


def operation_id_violations(operation: Operation) -> Iterator[str]:
    """An operationID identifies one request, and the request is executed once."""
    same_body = [each for each in operation.responses if not each.changed_body]
    if wrong := [str(each) for each in operation.responses if each.changed_body and each.code != "operation_reused"]:
        yield f"{operation.id}: responses to a changed body: {wrong}"
    if len(executed := [str(each) for each in same_body if each.status in (201, 202)]) > 1:
        yield f"{operation.id}: executed more than once: {executed}"
    if len(identities := {each.identity for each in same_body if each.status in (200, 201)}) > 1:
        yield f"{operation.id}: refers to several objects: {sorted(identities)}"
    succeeded_at = min((each.received_at for each in same_body if each.status in (200, 201, 202)), default=None)
    for each in same_body:
        if (
            succeeded_at is not None
            and each.sent_at > succeeded_at
            and each.status not in (200, *_allowed_deleted_status(operation, each.received_at))
        ):
            yield f"{operation.id}: the operation had succeeded, and a later response was {each}"


def _allowed_deleted_status(operation: Operation, received_at: float) -> tuple[int, ...]:
    deletion_at = operation.deletion_requested_at
    return (410,) if deletion_at is not None and deletion_at < received_at else ()


def unfinished_operations(snapshot: Snapshot, flavors: Collection[str]) -> Iterator[str]:
    """No seeding stays unfinished."""
    for each in snapshot.cluster.operations.values():
        seeds = each["spec"]["type"] == "SeedStock" and recorded_request(each)["specName"] in flavors
        if seeds and operation_state(each) != "Succeeded":
            yield f"{each['spec']['operationID']} is {operation_state(each)}"


def history_violations(snapshot: Snapshot, history: RequestHistory) -> Iterator[str]:
    """Units and storages exist, run and mount storages as the responses to the callers say."""
    units = {unit["metadata"]["name"]: unit for unit in snapshot.cluster.units}
    for unit in history.units.values():
        yield from _unit_history_violations(unit, units.get(unit.name))
    for name, storage in history.storages.items():
        stored = snapshot.storages.get(name)
        if (stored is not None) not in storage.exists.values:
            yield f"storage {name} {'exists' if stored else 'does not exist'}, unlike the responses to its callers"
        elif stored and (condition := ready_condition(stored)).get("status") != "True":
            yield f"storage {name} is not Ready: {condition.get('reason')} {condition.get('message')}"
    yield from (
        f"storage {name} is attached to a missing unit"
        for name in find_orphaned_attachments(snapshot.storages, snapshot.cluster)
    )


def _unit_history_violations(unit: Unit, stored: Object | None) -> Iterator[str]:
    if stored is None:
        if unit.operation.succeeded and unit.operation.deletion_requested_at is None:
            yield f"unit {unit.name} is lost"
        return
    if unit.deleted:
        yield f"unit {unit.name} was deleted and still exists"
        return
    spec = stored["spec"]
    if spec.get("running", True) not in unit.running.values:
        yield f"unit {unit.name}: running is {spec.get('running', True)}"
    if (mounts := frozenset(each["name"] for each in spec.get("storageMounts", ()))) not in unit.mounts.values:
        yield f"unit {unit.name} mounts {sorted(mounts)}; expected one of {list(map(sorted, unit.mounts.values))}"


def convergence_violations(snapshot: Snapshot) -> Iterator[str]:
    """Every unit is in the expected phase, and no child object is orphaned or missing."""
    units = [*snapshot.cluster.units, *snapshot.cluster.stock]
    for unit in units:
        expected = "Ready" if unit["spec"].get("running", True) else "Empty"
        if (phase := unit.get("status", {}).get("phase")) != expected:
            reason = f"{ready_condition(unit).get('reason')} {ready_condition(unit).get('message')}"
            yield f"unit {unit['metadata']['name']} is {phase} instead of {expected}: {reason}"
    running = {unit["metadata"]["uid"] for unit in units if unit["spec"].get("running", True)}
    pools = {pool["metadata"]["uid"] for pool in snapshot.pools}
    for pod in snapshot.pods:
        if labels_of(pod).get(Label.UNIT_UID) not in running and labels_of(pod).get(Label.POOL_UID) not in pools:
            yield f"pod {pod['metadata']['namespace']}/{pod['metadata']['name']} is orphaned"
    yield from _child_violations(snapshot, units)


def _child_violations(snapshot: Snapshot, units: Iterable[Object]) -> Iterator[str]:
    pool_children = {
        f"{each['metadata']['namespace']}/{pool_child_name(each['metadata']['name'])}" for each in snapshot.pools
    }
    with_deployments = {key_of(unit) for unit in units} | pool_children
    with_ports = {key_of(unit) for unit in snapshot.cluster.units if unit["spec"].get("template", {}).get("ports")}
    for kind, objects, owners in (
        ("deployment", snapshot.deployments, with_deployments),
        ("service", snapshot.services, with_ports),
        ("pvc", snapshot.pvcs, set(map(key_of, snapshot.storages.values()))),
    ):
        children = set(map(key_of, objects))
        yield from (f"{kind} {each} is orphaned" for each in sorted(children - owners))
        yield from (f"{kind} {each} is missing" for each in sorted(owners - children))


def key_of(item: Object) -> str:
    return f"{item['metadata']['namespace']}/{item['metadata']['name']}"


def labels_of(item: Object) -> Mapping[str, str]:
    return item["metadata"].get("labels") or {}


def idle_violations(snapshot: Snapshot, functions: Collection[str], disk_was_full: bool) -> Iterator[str]:
    """Functions have no workers, and the streams are empty.

    A NATS server that is killed while its disk is full may keep an acknowledged message, which it never delivers again.
    This check does not detect lost messages. The check that every invocation has a result detects them.
    """
    for unit in snapshot.cluster.units:
        serverless = unit["spec"].get("serverless") or {}
        if serverless.get("workerOf") in functions:
            yield f"worker {unit['metadata']['name']} still exists"
    for name in WORK_STREAMS:
        stream = snapshot.streams.get(name)
        if stream is None:
            yield f"the backlog of stream {name} is unknown"
        elif stream.pending or (stream.messages and not disk_was_full):
            yield f"stream {name} has {stream.messages} messages, {stream.pending} of them pending"


def result_violations(invocation: Invocation, max_attempts: int, replies_may_be_lost: bool) -> Iterator[str]:
    """An accepted invocation has one result, with an explained state and with the payload of the invocation."""
    if not invocation.accepted:
        return
    yield from (f"{invocation.id}: {each}" for each in invocation.violations)
    if not invocation.terminal_views:
        yield f"{invocation.id}: has no result"
        return
    if len(invocation.terminal_views) > 1:
        yield f"{invocation.id}: the result changed: {invocation.terminal_views}"
    yield from (
        f"{invocation.id}: {each}"
        for each in _unexplained_result(invocation, invocation.terminal_views[0], max_attempts)
    )
    for response in invocation.sync_responses:
        yield from (
            f"{invocation.id}, sync response: {each}"
            for each in _unexplained_result(invocation, response, max_attempts)
        )
        if response["state"] != invocation.terminal_views[0]["state"] and not replies_may_be_lost:
            yield f"{invocation.id}: sync response {response}, stored result {invocation.terminal_views[0]}"


def _unexplained_result(invocation: Invocation, result: Object, max_attempts: int) -> Iterator[str]:
    match result["state"]:
        case "succeeded":
            if result.get("payload") != invocation.request["payload"]:
                yield f"has the payload of another invocation: {result}"
        case "cancelled":
            if not invocation.cancelled:
                yield f"cancelled without a cancel request: {result}"
        case "expired":
            elapsed = _finished_at(result) - invocation.sent_at
            if elapsed < invocation.request["timeoutSeconds"]:
                yield f"expired after {elapsed:.1f} s of {invocation.request['timeoutSeconds']} s: {result}"
        case "dead_lettered":
            if (result.get("attempts") or 0) < max_attempts:
                yield f"dead-lettered after {result.get('attempts')} attempts: {result}"
        case _:
            yield f"unexpected state: {result}"


def _finished_at(result: Object) -> float:
    return datetime.fromisoformat(result["timings"]["finishedAt"]).timestamp()


def unknown_results(invocation_ids: Iterable[str], history: RequestHistory) -> Iterator[str]:
    """Every stored result belongs to an invocation of this history, and every invocation has at most one result."""
    for id_, times in Counter(invocation_ids).items():
        if id_ not in history.invocations:
            yield f"a result of {id_}, which was never invoked"
        if times > 1:
            yield f"{times} results of {id_}"


def unexpected_exits(
    processes: Iterable[ProcessStatus], before: Mapping[str, int], killed: Mapping[str, int]
) -> Iterator[str]:
    """No process exits unless it is killed or stopped."""
    for each in processes:
        exits = each.restarts - before.get(each.name, 0)
        if exits > killed.get(each.name, 0) + (not each.should_run):
            yield f"{each.name} exited unexpectedly; its last exit code is {each.last_exit_code}"


def count_executions(lines: Iterable[str]) -> tuple[int, int]:
    """Return the number of executions, and how many of them repeated an earlier execution of the same invocation."""
    counts = Counter(lines)
    return counts.total(), counts.total() - len(counts)
