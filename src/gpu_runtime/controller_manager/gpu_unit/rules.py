"""Rules that a unit must fulfil before its children are created or changed.

The rules are checked in order. The Ready condition of the unit reports the first violated rule.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

from gpu_runtime.contract.crd.conditions import READY_CONDITION, ReadyReason, find_condition
from gpu_runtime.contract.crd.gpu_storage import GPUStorage
from gpu_runtime.contract.crd.gpu_unit import GPUUnitSpec, StorageMount
from gpu_runtime.contract.crd.well_known import Label, UnitRole
from gpu_runtime.contract.validation import unit_errors
from gpu_runtime.contract.validation.pod_policy import PodPolicy
from gpu_runtime.controller_manager.gpu_unit.children.sidecar import uses_sidecar_port
from gpu_runtime.controller_manager.gpu_unit.observe import ObservedUnit
from gpu_runtime.controller_manager.workload.workload_readiness import Blocked
from gpu_runtime.kube.builtin_kinds import Pod

UnitRule = Callable[[ObservedUnit], Blocked | None]


def invalid_spec(observed: ObservedUnit) -> Blocked | None:
    return _validate_spec(observed.unit.spec, observed.role, observed.settings.pods.policy)


@lru_cache(maxsize=4096)
def _validate_spec(spec: GPUUnitSpec, role: UnitRole, policy: PodPolicy) -> Blocked | None:
    """Validate a spec.

    The result is cached, because a unit is reconciled several times per change of its spec and many units have the same
    spec.
    """
    problems = unit_errors(spec, role, "spec", policy)
    return Blocked(ReadyReason.INVALID_SPEC, "; ".join(map(str, problems))) if problems else None


def sidecar_port_conflict(observed: ObservedUnit) -> Blocked | None:
    port = observed.settings.serverless.sidecar.port
    if not uses_sidecar_port(observed.unit.spec, port):
        return None
    return Blocked(
        ReadyReason.INVALID_SPEC,
        f"spec.template.ports: port {port} is reserved for the worker sidecar: choose another port",
    )


def request_id_taken(observed: ObservedUnit) -> Blocked | None:
    """Check that the function owns its requestID. A function that does not own its requestID gets no queue and no
    pod."""
    if not observed.unit.spec.is_function or not _lacks_queue(observed):
        return None
    owner = observed.queue_owner
    if owner is None:
        return Blocked(ReadyReason.UNIT_PROGRESSING, "waiting for the queue of the function", failed=False)
    text = f"function {owner.key} has the same serverless.requestID: delete one of the two functions"
    return Blocked(ReadyReason.REQUEST_ID_TAKEN, text)


def worker_not_recorded(observed: ObservedUnit) -> Blocked | None:
    """Check that the activator created the worker. The pod of a worker stays if its function is deleted."""
    spec = observed.unit.spec
    if not spec.serves_function or spec.is_function or not _lacks_queue(observed):
        return None
    text = (
        "the activator has not recorded this worker, or its function was deleted: do not create units with"
        " serverless.workerOf, because only the activator creates workers"
    )
    return Blocked(ReadyReason.WORKER_NOT_RECORDED, text, failed=False)


def _lacks_queue(observed: ObservedUnit) -> bool:
    """Return whether the unit must not run, because it may not read a queue. A unit can always stop."""
    stops = not observed.unit.spec.running and observed.deployment is not None
    return not observed.function_id and not stops


def active_mounts(observed: ObservedUnit) -> tuple[StorageMount, ...]:
    """Return the storage mounts of a running unit. A stopped unit has none, so its storages cannot block a stop."""
    return observed.unit.spec.storage_mounts if observed.unit.spec.running else ()


def storage_missing(observed: ObservedUnit) -> Blocked | None:
    missing = [mount.name for mount in active_mounts(observed) if mount.name not in observed.storages]
    if not missing:
        return None
    return Blocked(
        ReadyReason.STORAGE_MOUNT_INVALID,
        f"GPUStorage {', '.join(missing)} does not exist in this namespace: create it, or remove it from"
        " spec.storageMounts",
    )


def storage_attached_elsewhere(observed: ObservedUnit) -> Blocked | None:
    """Check that no storage is attached to another unit. The rule also applies to units that kubectl created."""
    for name, storage in _mounted_storages(observed):
        attachment = storage.spec.attached_to
        if attachment is None and storage.metadata.deletion_timestamp:
            text = f"GPUStorage {name} is being deleted: remove it from spec.storageMounts"
            return Blocked(ReadyReason.STORAGE_MOUNT_INVALID, text)
        if attachment is not None and attachment.unit != observed.unit.metadata.name:
            text = (
                f"GPUStorage {name} is attached to unit {attachment.unit}: delete that unit, or remove the storage from"
                " spec.storageMounts of that unit"
            )
            return Blocked(ReadyReason.STORAGE_MOUNT_INVALID, text)
    return None


def storage_not_attached(observed: ObservedUnit) -> Blocked | None:
    names = [name for name, storage in _mounted_storages(observed) if storage.spec.attached_to is None]
    if not names:
        return None
    text = f"GPUStorage {', '.join(names)} is not attached to this unit yet"
    return Blocked(ReadyReason.STORAGE_NOT_READY, text, failed=False)


def storage_still_mounted(observed: ObservedUnit) -> Blocked | None:
    """Check that no pod outside this unit mounts a storage of the unit, because two pods must never mount one storage.

    For example, the pod of a deleted unit with the same name may still be terminating.
    """
    for name, _ in _mounted_storages(observed):
        pods = [pod.metadata.name for pod in observed.mounting_pods.get(name, ()) if not _is_own_pod(pod, observed)]
        if pods:
            text = f"GPUStorage {name} is still mounted by pod {', '.join(pods)}: waiting for its termination"
            return Blocked(ReadyReason.STORAGE_NOT_READY, text, failed=False)
    if observed.pod_cache_error and observed.deployment is None and active_mounts(observed):
        text = f"cannot check whether another pod mounts a storage of this unit: {observed.pod_cache_error}"
        return Blocked(ReadyReason.STORAGE_NOT_READY, text, failed=False)
    return None


def _is_own_pod(pod: Pod, observed: ObservedUnit) -> bool:
    """Return whether Kubernetes terminates this pod before it creates the next pod of the unit.

    Kubernetes does so for all pods of one Deployment, because the update strategy is Recreate. If the Deployment
    exists, these pods include the pods of a deleted unit with the same name.
    """
    labels, metadata = pod.metadata.labels, observed.unit.metadata
    if observed.deployment is not None:
        return labels.get(Label.UNIT) == metadata.name
    return labels.get(Label.UNIT_UID) == metadata.uid


def storage_not_ready(observed: ObservedUnit) -> Blocked | None:
    """Check that all storages are mountable. If this rule blocks an update, the pod with the previous spec stays."""
    waiting = [
        _not_ready_message(name, storage)
        for name, storage in _mounted_storages(observed)
        if not storage.status.mountable
    ]
    return Blocked(ReadyReason.STORAGE_NOT_READY, "; ".join(waiting), failed=False) if waiting else None


def _not_ready_message(name: str, storage: GPUStorage) -> str:
    ready = find_condition(storage.status.conditions, READY_CONDITION)
    return f"GPUStorage {name} is not Ready yet" + (f": {ready.message}" if ready and ready.message else "")


def _mounted_storages(observed: ObservedUnit) -> list[tuple[str, GPUStorage]]:
    return [
        (mount.name, observed.storages[mount.name])
        for mount in active_mounts(observed)
        if mount.name in observed.storages
    ]


UNIT_RULES: Sequence[UnitRule] = (
    invalid_spec,
    sidecar_port_conflict,
    request_id_taken,
    worker_not_recorded,
    storage_missing,
    storage_attached_elsewhere,
    storage_not_attached,
    storage_still_mounted,
    storage_not_ready,
)


def first_violation(rules: Sequence[UnitRule], observed: ObservedUnit) -> Blocked | None:
    return next((blocked for rule in rules if (blocked := rule(observed))), None)
