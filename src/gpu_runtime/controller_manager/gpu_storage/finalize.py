"""What the end of a storage still waits for. Pure.

Only what really mounts the data is waited for. An operation that attached the storage and made no unit yet is not: its
unit will be told that the storage is gone, while a finalizer that waits for another process could block for good.
"""

from dataclasses import dataclass

from gpu_runtime.controller_manager.gpu_storage.attachment import is_wanted
from gpu_runtime.controller_manager.gpu_storage.children.pvc import is_ours
from gpu_runtime.controller_manager.gpu_storage.observe import Observed
from gpu_runtime.kube.builtin_kinds import PersistentVolumeClaim

PASSING_SECONDS = 1.0
"""For a claim that is on its way out."""

LASTING_SECONDS = 15.0
"""For what a unit or a stranger's pod holds. Its end is heard of, mostly."""


@dataclass(frozen=True)
class Ending:
    waits_for: str = ""
    """Empty when the storage may go."""
    delete_claim: PersistentVolumeClaim | None = None
    look_again: float = PASSING_SECONDS


def ending(seen: Observed) -> Ending:
    if holders := _holders(seen):
        return Ending(f"{holders}: delete or change the unit first", look_again=LASTING_SECONDS)
    if seen.pods_trouble:
        return Ending(f"a look at the pods that may mount it: {seen.pods_trouble}")
    claim = seen.claim
    if claim is None or not is_ours(claim, seen.storage):
        return Ending()
    if claim.metadata.deletion_timestamp is None:
        return Ending(f"the end of PersistentVolumeClaim {claim.metadata.name}", delete_claim=claim)
    # Kubernetes keeps a claim while a pod mounts it, whoever's pod that is.
    held = ", ".join(claim.metadata.finalizers)
    return Ending(f"the end of PersistentVolumeClaim {claim.metadata.name}, which {held or 'nothing'} holds")


def _holders(seen: Observed) -> str:
    unit = [f"GPUUnit {seen.attached.unit}"] if seen.attached and is_wanted(seen) else []
    return ", ".join([*unit, *seen.mounted_in])
