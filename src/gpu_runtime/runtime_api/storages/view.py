"""Converts a GPUStorage into the JSON view of the API. Pure functions."""

from gpu_runtime.contract.crd.conditions import StoragePhase, known_phase
from gpu_runtime.contract.crd.gpu_storage import GPUStorage
from gpu_runtime.runtime_api.http.route import View
from gpu_runtime.runtime_api.object_view import ConditionView, common_fields, condition_view, is_ready


class StorageView(View, frozen=True, kw_only=True):
    """A storage: persistent data that a unit can mount."""

    name: str
    """The name of the storage and of its PersistentVolumeClaim."""

    namespace: str
    """The namespace of the storage."""

    size: str
    """The requested size."""

    storage_class_name: str
    """The StorageClass of the volume."""

    phase: StoragePhase
    """Pending, Ready (units can mount the volume) or Failed."""

    ready: bool
    """Whether the volume matches the requested size and class."""

    reason: str
    """Why the storage is ready or not, as a code for programs. Empty before the first reconcile."""

    message: str
    """Why the storage is ready or not, as a text for people."""

    mountable: bool
    """Whether a unit can mount the storage now. Some StorageClasses provision the volume when the first pod mounts
    it."""

    capacity: str | None = None
    """The size of the volume."""

    claim_name: str | None = None
    """The name of the PersistentVolumeClaim."""

    mounted_by: str | None = None
    """The unit that the storage is attached to. No other unit can mount it."""

    conditions: tuple[ConditionView, ...]
    """All conditions of the storage. The fields ready, reason and message repeat the condition Ready."""

    observed_generation: int
    """The generation that the status describes. If it is lower than generation, the controller has not processed the
    last change."""

    generation: int
    """The number of the current version of the spec. Every change of the spec increases it."""

    created_at: str | None = None
    """When the storage was created."""

    deleting: bool
    """Whether the storage is being deleted."""


def storage_view(storage: GPUStorage) -> StorageView:
    spec, status = storage.spec, storage.status
    return StorageView(
        **common_fields(storage),
        size=spec.size,
        storage_class_name=spec.storage_class_name,
        phase=phase_of(storage),
        ready=is_ready(storage),
        mountable=status.mountable,
        capacity=status.capacity,
        claim_name=status.claim_name,
        # The attachment in the spec decides. The controller updates the status later.
        mounted_by=spec.attached_to.unit if spec.attached_to else None,
        conditions=tuple(map(condition_view, status.conditions)),
    )


def phase_of(storage: GPUStorage) -> StoragePhase:
    """Return the storage's phase. It is Pending before the first reconcile, and for phases of a newer version."""
    return known_phase(storage.status.phase, StoragePhase.PENDING)
