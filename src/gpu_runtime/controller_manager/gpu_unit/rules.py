"""What must hold before a unit's workload is built, as ordered data: the first rule that is broken is told."""

from collections.abc import Callable, Sequence

from gpu_runtime.contract.crd.conditions import Reason, StoragePhase
from gpu_runtime.contract.crd.gpu_storage import GPUStorage
from gpu_runtime.contract.crd.gpu_unit import StorageMount
from gpu_runtime.contract.validation import unit_problems
from gpu_runtime.controller_manager.gpu_unit.observe import Observed
from gpu_runtime.controller_manager.workload.verdict import Blocked

Rule = Callable[[Observed], Blocked | None]


def invalid_spec(seen: Observed) -> Blocked | None:
    problems = unit_problems(seen.unit.spec, seen.role, at="spec")
    return Blocked(Reason.INVALID_SPEC, "; ".join(map(str, problems))) if problems else None


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
        if attached is None:
            return Blocked(
                Reason.STORAGE_NOT_READY, f"GPUStorage {name} is not attached to this unit yet", failed=False
            )
        if attached.unit != seen.unit.metadata.name:
            return Blocked(Reason.STORAGE_MOUNT_INVALID, f"GPUStorage {name} is attached to unit {attached.unit}")
    return None


def storage_not_ready(seen: Observed) -> Blocked | None:
    waiting = [name for name, storage in _storages(seen) if storage.status.phase != StoragePhase.READY.value]
    if not waiting:
        return None
    return Blocked(Reason.STORAGE_NOT_READY, f"GPUStorage {', '.join(waiting)} is not Ready yet", failed=False)


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
    storage_missing,
    storage_of_another,
    storage_not_ready,
    stock_still_holding,
)


def first_violation(rules: Sequence[Rule], seen: Observed) -> Blocked | None:
    return next((blocked for rule in rules if (blocked := rule(seen))), None)
