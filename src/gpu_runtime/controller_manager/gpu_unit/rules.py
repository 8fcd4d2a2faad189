"""What must hold before a unit's workload is built, as ordered data: the first rule that is broken is told."""

from collections.abc import Callable, Sequence
from functools import lru_cache

from gpu_runtime.contract.crd.conditions import READY, Reason, find
from gpu_runtime.contract.crd.gpu_storage import GPUStorage
from gpu_runtime.contract.crd.gpu_unit import GPUUnitSpec, StorageMount
from gpu_runtime.contract.crd.well_known import Label, Role
from gpu_runtime.contract.validation import unit_problems
from gpu_runtime.controller_manager.gpu_unit.children.sidecar import sidecar_port_taken
from gpu_runtime.controller_manager.gpu_unit.observe import Observed
from gpu_runtime.controller_manager.workload.workload_readiness import Blocked
from gpu_runtime.kube.builtin_kinds import Pod

Rule = Callable[[Observed], Blocked | None]


def invalid_spec(seen: Observed) -> Blocked | None:
    return _invalid(seen.unit.spec, seen.role)


@lru_cache(maxsize=4096)
def _invalid(spec: GPUUnitSpec, role: Role) -> Blocked | None:
    """A unit is looked at several times before its spec changes, and most specs are like another one's."""
    problems = unit_problems(spec, role, at="spec")
    return Blocked(Reason.INVALID_SPEC, "; ".join(map(str, problems))) if problems else None


def port_of_the_sidecar(seen: Observed) -> Blocked | None:
    port = seen.settings.serverless.sidecar.port
    if not sidecar_port_taken(seen.unit.spec, port):
        return None
    return Blocked(Reason.INVALID_SPEC, f"spec.template.ports: {port} is the worker sidecar's; choose another")


def mounted(seen: Observed) -> tuple[StorageMount, ...]:
    """A stopped unit mounts nothing, and must be able to stop whatever became of its storages."""
    return seen.unit.spec.storage_mounts if seen.unit.spec.running else ()


def storage_missing(seen: Observed) -> Blocked | None:
    missing = [mount.name for mount in mounted(seen) if mount.name not in seen.storages]
    if not missing:
        return None
    return Blocked(Reason.STORAGE_MOUNT_INVALID, f"there is no GPUStorage {', '.join(missing)} in this namespace")


def storage_of_another(seen: Observed) -> Blocked | None:
    """Only the unit that a storage is attached to may mount it, however the unit came about."""
    for name, storage in _storages(seen):
        attached = storage.spec.attached_to
        if attached is None and storage.metadata.deletion_timestamp:
            return Blocked(Reason.STORAGE_MOUNT_INVALID, f"GPUStorage {name} is being deleted")
        if attached is not None and attached.unit != seen.unit.metadata.name:
            return Blocked(Reason.STORAGE_MOUNT_INVALID, f"GPUStorage {name} is attached to unit {attached.unit}")
    return None


def storage_unattached(seen: Observed) -> Blocked | None:
    names = [name for name, storage in _storages(seen) if storage.spec.attached_to is None]
    if not names:
        return None
    text = f"GPUStorage {', '.join(names)} is not attached to this unit yet"
    return Blocked(Reason.STORAGE_NOT_READY, text, failed=False)


def storage_still_mounted(seen: Observed) -> Blocked | None:
    """Two pods never mount one storage: that of an earlier unit of the same name may still be ending."""
    for name, _ in _storages(seen):
        pods = [pod.metadata.name for pod in seen.mounting.get(name, ()) if not _is_own(pod, seen)]
        if pods:
            text = f"GPUStorage {name} is still mounted by pod {', '.join(pods)}"
            return Blocked(Reason.STORAGE_NOT_READY, text, failed=False)
    if seen.pods_trouble and seen.deployment is None and mounted(seen):
        unseen = f"whether a storage is still mounted elsewhere cannot be seen: {seen.pods_trouble}"
        return Blocked(Reason.STORAGE_NOT_READY, unseen, failed=False)
    return None


def _is_own(pod: Pod, seen: Observed) -> bool:
    """Whether the pod ends before the unit's next one comes: Kubernetes sees to that for pods of one Deployment."""
    labels, metadata = pod.metadata.labels, seen.unit.metadata
    if seen.deployment is not None:
        return labels.get(Label.UNIT) == metadata.name
    return labels.get(Label.UNIT_UID) == metadata.uid


def storage_not_ready(seen: Observed) -> Blocked | None:
    """What runs goes on: a change that waits for a storage costs nothing until the storage comes."""
    waiting = [_explained(name, storage) for name, storage in _storages(seen) if not storage.status.mountable]
    return Blocked(Reason.STORAGE_NOT_READY, "; ".join(waiting), failed=False) if waiting else None


def _explained(name: str, storage: GPUStorage) -> str:
    told = find(storage.status.conditions, READY)
    return f"GPUStorage {name} is not Ready yet" + (f": {told.message}" if told and told.message else "")


def stock_still_holding(seen: Observed) -> Blocked | None:
    """The claimed stock's pod must be gone before the unit's own comes: no GPU is ever held by two pods."""
    if seen.deployment is not None or seen.source_stock is None:
        return None
    if seen.stock_remains:
        return Blocked(Reason.STOCK_RELEASING, f"the GPUs are still with {', '.join(seen.stock_remains)}", failed=False)
    if seen.pods_trouble:
        unseen = f"whether the stock's pod is gone cannot be seen: {seen.pods_trouble}"
        return Blocked(Reason.STOCK_RELEASING, unseen, failed=False)
    return None


def _storages(seen: Observed) -> list[tuple[str, GPUStorage]]:
    return [(mount.name, seen.storages[mount.name]) for mount in mounted(seen) if mount.name in seen.storages]


UNIT_RULES: Sequence[Rule] = (
    invalid_spec,
    port_of_the_sidecar,
    storage_missing,
    storage_of_another,
    storage_unattached,
    storage_still_mounted,
    storage_not_ready,
    stock_still_holding,
)


def first_violation(rules: Sequence[Rule], seen: Observed) -> Blocked | None:
    return next((blocked for rule in rules if (blocked := rule(seen))), None)
