"""What must hold before a unit's workload is built, as ordered data: the first rule that is broken is told."""

from collections.abc import Callable, Sequence
from functools import lru_cache

from gpu_runtime.contract.crd.conditions import READY_CONDITION, ReadyReason, find_condition
from gpu_runtime.contract.crd.gpu_storage import GPUStorage
from gpu_runtime.contract.crd.gpu_unit import GPUUnitSpec, StorageMount
from gpu_runtime.contract.crd.well_known import Label, UnitRole
from gpu_runtime.contract.validation import unit_errors
from gpu_runtime.controller_manager.gpu_unit.children.sidecar import uses_sidecar_port
from gpu_runtime.controller_manager.gpu_unit.observe import ObservedUnit
from gpu_runtime.controller_manager.workload.workload_readiness import Blocked
from gpu_runtime.kube.builtin_kinds import Pod

UnitRule = Callable[[ObservedUnit], Blocked | None]


def invalid_spec(seen: ObservedUnit) -> Blocked | None:
    return _validate_spec(seen.unit.spec, seen.role)


@lru_cache(maxsize=4096)
def _validate_spec(spec: GPUUnitSpec, role: UnitRole) -> Blocked | None:
    """A unit is looked at several times before its spec changes, and most specs are like another one's."""
    problems = unit_errors(spec, role, path="spec")
    return Blocked(ReadyReason.INVALID_SPEC, "; ".join(map(str, problems))) if problems else None


def sidecar_port_conflict(seen: ObservedUnit) -> Blocked | None:
    port = seen.settings.serverless.sidecar.port
    if not uses_sidecar_port(seen.unit.spec, port):
        return None
    return Blocked(ReadyReason.INVALID_SPEC, f"spec.template.ports: {port} is the worker sidecar's; choose another")


def active_mounts(seen: ObservedUnit) -> tuple[StorageMount, ...]:
    """A stopped unit mounts nothing, and must be able to stop whatever became of its storages."""
    return seen.unit.spec.storage_mounts if seen.unit.spec.running else ()


def storage_missing(seen: ObservedUnit) -> Blocked | None:
    missing = [mount.name for mount in active_mounts(seen) if mount.name not in seen.storages]
    if not missing:
        return None
    return Blocked(ReadyReason.STORAGE_MOUNT_INVALID, f"there is no GPUStorage {', '.join(missing)} in this namespace")


def storage_attached_elsewhere(seen: ObservedUnit) -> Blocked | None:
    """Only the unit that a storage is attached to may mount it, however the unit came about."""
    for name, storage in _mounted_storages(seen):
        attached = storage.spec.attached_to
        if attached is None and storage.metadata.deletion_timestamp:
            return Blocked(ReadyReason.STORAGE_MOUNT_INVALID, f"GPUStorage {name} is being deleted")
        if attached is not None and attached.unit != seen.unit.metadata.name:
            return Blocked(ReadyReason.STORAGE_MOUNT_INVALID, f"GPUStorage {name} is attached to unit {attached.unit}")
    return None


def storage_not_attached(seen: ObservedUnit) -> Blocked | None:
    names = [name for name, storage in _mounted_storages(seen) if storage.spec.attached_to is None]
    if not names:
        return None
    text = f"GPUStorage {', '.join(names)} is not attached to this unit yet"
    return Blocked(ReadyReason.STORAGE_NOT_READY, text, failed=False)


def storage_still_mounted(seen: ObservedUnit) -> Blocked | None:
    """Two pods never mount one storage: that of an earlier unit of the same name may still be ending."""
    for name, _ in _mounted_storages(seen):
        pods = [pod.metadata.name for pod in seen.mounting_pods.get(name, ()) if not _is_own_pod(pod, seen)]
        if pods:
            text = f"GPUStorage {name} is still mounted by pod {', '.join(pods)}"
            return Blocked(ReadyReason.STORAGE_NOT_READY, text, failed=False)
    if seen.pod_cache_error and seen.deployment is None and active_mounts(seen):
        unseen = f"whether a storage is still mounted elsewhere cannot be seen: {seen.pod_cache_error}"
        return Blocked(ReadyReason.STORAGE_NOT_READY, unseen, failed=False)
    return None


def _is_own_pod(pod: Pod, seen: ObservedUnit) -> bool:
    """Whether the pod ends before the unit's next one comes: Kubernetes sees to that for pods of one Deployment."""
    labels, metadata = pod.metadata.labels, seen.unit.metadata
    if seen.deployment is not None:
        return labels.get(Label.UNIT) == metadata.name
    return labels.get(Label.UNIT_UID) == metadata.uid


def storage_not_ready(seen: ObservedUnit) -> Blocked | None:
    """What runs goes on: a change that waits for a storage costs nothing until the storage comes."""
    waiting = [
        _not_ready_message(name, storage) for name, storage in _mounted_storages(seen) if not storage.status.mountable
    ]
    return Blocked(ReadyReason.STORAGE_NOT_READY, "; ".join(waiting), failed=False) if waiting else None


def _not_ready_message(name: str, storage: GPUStorage) -> str:
    told = find_condition(storage.status.conditions, READY_CONDITION)
    return f"GPUStorage {name} is not Ready yet" + (f": {told.message}" if told and told.message else "")


def stock_releasing(seen: ObservedUnit) -> Blocked | None:
    """The claimed stock's pod must be gone before the unit's own comes: no GPU is ever held by two pods."""
    if seen.deployment is not None or seen.source_stock is None:
        return None
    if seen.remaining_stock_objects:
        return Blocked(
            ReadyReason.STOCK_RELEASING,
            f"the GPUs are still with {', '.join(seen.remaining_stock_objects)}",
            failed=False,
        )
    if seen.pod_cache_error:
        unseen = f"whether the stock's pod is gone cannot be seen: {seen.pod_cache_error}"
        return Blocked(ReadyReason.STOCK_RELEASING, unseen, failed=False)
    return None


def _mounted_storages(seen: ObservedUnit) -> list[tuple[str, GPUStorage]]:
    return [(mount.name, seen.storages[mount.name]) for mount in active_mounts(seen) if mount.name in seen.storages]


UNIT_RULES: Sequence[UnitRule] = (
    invalid_spec,
    sidecar_port_conflict,
    storage_missing,
    storage_attached_elsewhere,
    storage_not_attached,
    storage_still_mounted,
    storage_not_ready,
    stock_releasing,
)


def first_violation(rules: Sequence[UnitRule], seen: ObservedUnit) -> Blocked | None:
    return next((blocked for rule in rules if (blocked := rule(seen))), None)
