"""A storage as callers see it. Pure."""

from gpu_runtime.contract.crd.conditions import READY_CONDITION, StoragePhase, find_condition
from gpu_runtime.contract.crd.gpu_storage import GPUStorage
from gpu_runtime.runtime_api.condition_view import ConditionView, condition_view
from gpu_runtime.runtime_api.http.route import View


class StorageView(View, frozen=True, kw_only=True):
    """Data that outlives its units."""

    name: str
    """The storage's name, and its claim's."""

    namespace: str
    """Where the storage is."""

    size: str
    """How much was asked for."""

    storage_class_name: str
    """The StorageClass that provides the volume."""

    phase: StoragePhase
    """Pending, Ready (there is a volume that can be mounted) or Failed."""

    ready: bool
    """Whether all that was asked for is true."""

    reason: str
    """Why it is ready or not, as one word for programs. Empty until it was looked at first."""

    message: str
    """Why it is ready or not, as a sentence for people."""

    mountable: bool
    """Whether a unit can mount it now: some volumes are made only for their first unit."""

    capacity: str | None = None
    """How much the volume really holds."""

    claim_name: str | None = None
    """The PersistentVolumeClaim."""

    mounted_by: str | None = None
    """The unit that holds it. No other unit can mount it meanwhile."""

    conditions: tuple[ConditionView, ...]
    """Every aspect of its state. The one named Ready is told by ready, reason and message."""

    observed_generation: int
    """The generation that phase, ready and the rest of the state speak of."""

    generation: int
    """Counts the changes of what was asked."""

    created_at: str | None = None
    """When it was made."""

    deleting: bool
    """Whether its end was asked for."""


def storage_view(storage: GPUStorage) -> StorageView:
    about, spec, status = storage.metadata, storage.spec, storage.status
    ready = find_condition(status.conditions, READY_CONDITION)
    return StorageView(
        name=about.name,
        namespace=about.namespace,
        size=spec.size,
        storage_class_name=spec.storage_class_name,
        phase=phase_of(storage),
        ready=ready is not None and ready.status == "True",
        reason=ready.reason if ready else "",
        message=ready.message if ready else "",
        mountable=status.mountable,
        capacity=status.capacity,
        claim_name=status.claim_name,
        # The attachment itself, which decides, and not the status, which follows it.
        mounted_by=spec.attached_to.unit if spec.attached_to else None,
        conditions=tuple(map(condition_view, status.conditions)),
        observed_generation=status.observed_generation,
        generation=about.generation,
        created_at=about.creation_timestamp,
        deleting=about.deletion_timestamp is not None,
    )


def phase_of(storage: GPUStorage) -> StoragePhase:
    """A storage that nobody has looked at yet is Pending. So is one in a phase that only a later version knows."""
    return _PHASES.get(storage.status.phase or "", StoragePhase.PENDING)


_PHASES = {phase.value: phase for phase in StoragePhase}
