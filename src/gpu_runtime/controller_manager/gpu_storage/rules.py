"""What must hold before a storage's claim is made or changed, as ordered data: the first broken rule is told."""

from collections.abc import Callable, Sequence

from gpu_runtime.contract.crd.conditions import Reason, StoragePhase
from gpu_runtime.contract.crd.well_known import Label
from gpu_runtime.contract.validation import storage_problems
from gpu_runtime.controller_manager.gpu_storage.children.pvc import ACCESS_MODE, is_ours
from gpu_runtime.controller_manager.gpu_storage.observe import Observed
from gpu_runtime.controller_manager.gpu_storage.storage_readiness import Verdict

Rule = Callable[[Observed], Verdict | None]


def invalid_spec(seen: Observed) -> Verdict | None:
    problems = storage_problems(seen.storage.spec, at="spec")
    return _failed(Reason.INVALID_SPEC, "; ".join(map(str, problems))) if problems else None


def claim_of_another(seen: Observed) -> Verdict | None:
    if seen.claim is None or is_ours(seen.claim, seen.storage):
        return None
    name = seen.storage.metadata.name
    return _failed(
        Reason.NAME_TAKEN,
        f"PersistentVolumeClaim {name} exists and belongs to somebody else: rename one of them, or hand the claim over"
        f" with the label {Label.STORAGE}={name}",
    )


def claim_gone(seen: Observed) -> Verdict | None:
    """An empty volume must not silently take the place of one that held data."""
    if seen.claim is not None or not _held_data(seen):
        return None
    return _failed(
        Reason.CLAIM_LOST,
        f"PersistentVolumeClaim {seen.storage.metadata.name} was deleted by somebody else, and the data with it:"
        " restore the claim, or delete this GPUStorage and create it anew",
    )


def claim_ending(seen: Observed) -> Verdict | None:
    if seen.claim is None or seen.claim.metadata.deletion_timestamp is None:
        return None
    name = seen.storage.metadata.name
    if not _held_data(seen):
        text = f"PersistentVolumeClaim {name} of an earlier storage is still being deleted"
        return Verdict(StoragePhase.PENDING, Reason.CLAIM_PENDING, text)
    return _failed(
        Reason.CLAIM_LOST,
        f"PersistentVolumeClaim {name} is being deleted by somebody else: its data goes when the last pod that mounts"
        " it ends; copy it before",
    )


def claim_of_another_make(seen: Observed) -> Verdict | None:
    """What cannot be changed about a claim that was adopted."""
    if seen.claim is None:
        return None
    found, wanted = seen.claim.spec, seen.storage.spec.storage_class_name
    if (found.storage_class_name or "") != wanted:
        said = f"is of class {found.storage_class_name or 'none'}, and this storage of class {wanted}"
    elif ACCESS_MODE not in found.access_modes:
        said = f"does not allow {ACCESS_MODE}"
    else:
        return None
    return _failed(
        Reason.CLAIM_SYNC_FAILED,
        f"PersistentVolumeClaim {seen.storage.metadata.name} {said}, which can never be changed: create a storage that"
        " fits the claim",
    )


STORAGE_RULES: Sequence[Rule] = (invalid_spec, claim_of_another, claim_gone, claim_ending, claim_of_another_make)


def first_violation(rules: Sequence[Rule], seen: Observed) -> Verdict | None:
    return next((found for rule in rules if (found := rule(seen))), None)


def _held_data(seen: Observed) -> bool:
    return seen.storage.status.capacity is not None


def _failed(reason: Reason, message: str) -> Verdict:
    return Verdict(StoragePhase.FAILED, reason, message)
