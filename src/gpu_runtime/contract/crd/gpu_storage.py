"""GPUStorage: data that outlives every unit that mounts it."""

from typing import Annotated, ClassVar

from msgspec import field

from gpu_runtime.contract.crd.conditions import READY_CONDITION, ReadyReason, StoragePhase, find_condition
from gpu_runtime.contract.crd.markers import (
    AGE_COLUMN,
    READY_REASON_COLUMN,
    CelRule,
    CrdDefinition,
    PrinterColumn,
    immutable,
    openapi,
)
from gpu_runtime.contract.crd.template import Count, QuantityString
from gpu_runtime.contract.crd.well_known import DEFAULT_STORAGE_CLASS, GROUP, MAX_NAME_LENGTH, NAME_PATTERN, VERSION
from gpu_runtime.kube.meta import ApiResource, Condition, KubeObject, KubeStruct


class Attachment(KubeStruct, frozen=True, kw_only=True):
    """The unit that alone may mount the storage."""

    unit: Annotated[str, openapi(pattern=NAME_PATTERN, maxLength=MAX_NAME_LENGTH)]
    """The name of the GPUUnit, which may not exist yet."""

    operation_id: Annotated[str, openapi(maxLength=256)] = field(default="", name="operationID")
    """The operation that attached it, where one did. A new operation for a unit of the same name writes itself here, so
    that a release meant for the unit before it fails on its resource version."""

    attempt: Count = 0
    """Which of the operation's attempts it was: a release meant for an earlier one fails in the same way."""


class GPUStorageSpec(KubeStruct, frozen=True, kw_only=True):
    """How much data the storage holds, on what, and who may mount it."""

    RULES: ClassVar = (
        immutable("storageClassName", "the data would have to move; create another storage"),
        CelRule(
            "!isQuantity(self.size) || !isQuantity(oldSelf.size)"
            " || quantity(self.size).compareTo(quantity(oldSelf.size)) >= 0",
            "size only grows",
            "size",
        ),
        CelRule(
            "!has(oldSelf.attachedTo) || !has(self.attachedTo) || self.attachedTo.unit == oldSelf.attachedTo.unit",
            "attachedTo passes to another unit only after it was released",
            "attachedTo",
        ),
    )

    size: QuantityString
    """How much the storage holds, for example 20Gi. It only grows."""

    storage_class_name: Annotated[str, openapi(minLength=1, maxLength=253)] = DEFAULT_STORAGE_CLASS
    """The StorageClass that provides the volume."""

    # In the spec, because it is a decision and not an observation: it must survive a restore that drops the status, it
    # changes the generation, and one write with the object's resource version decides who holds the storage.
    attached_to: Attachment | None = None
    """The unit that alone may mount the storage. The platform sets it before that unit exists and takes it away when
    the unit's pod is gone; leave it to the platform."""


class GPUStorageStatus(KubeStruct, frozen=True, kw_only=True):
    """What is true of the storage."""

    phase: Annotated[str, openapi(enum=[phase.value for phase in StoragePhase])] | None = None
    """Pending, Ready (there is a volume that can be mounted) or Failed. The Ready condition says whether all that was
    asked for is true, and why not: a storage that cannot grow can still be mounted."""

    claim_name: str | None = None
    """The PersistentVolumeClaim, which has the storage's own name."""

    capacity: QuantityString | None = None
    """How much the bound volume really holds."""

    mounted_by: str | None = None
    """The unit that holds the storage: what spec.attachedTo says, for the eye."""

    observed_generation: Annotated[int, openapi(format="int64")] = 0
    """The generation of the spec that this status speaks of."""

    last_sync_time: Annotated[str, openapi(format="date-time")] | None = None
    """When this status last changed."""

    conditions: tuple[Condition, ...] = ()
    """The Ready condition, with its reason and a message for the operator."""

    @property
    def mountable(self) -> bool:
        """Whether a unit may mount it now. Some volumes are made only when the first unit does."""
        told = find_condition(self.conditions, READY_CONDITION)
        waits_for_a_unit = told is not None and told.reason == ReadyReason.WAIT_FOR_FIRST_CONSUMER.value
        return self.phase == StoragePhase.READY.value or waits_for_a_unit


class GPUStorage(KubeObject, frozen=True, kw_only=True):
    """Persistent data on a volume of its own. It outlives every unit that mounts it; only deleting the GPUStorage
    deletes the data."""

    spec: GPUStorageSpec
    status: GPUStorageStatus = GPUStorageStatus()


GPU_STORAGES = ApiResource(GROUP, VERSION, "GPUStorage", "gpustorages", GPUStorage)

DEFINITION = CrdDefinition(
    GPU_STORAGES,
    short_names=("gst",),
    printer_columns=(
        PrinterColumn("Size", ".spec.size"),
        PrinterColumn("Class", ".spec.storageClassName"),
        PrinterColumn("Phase", ".status.phase"),
        READY_REASON_COLUMN,
        PrinterColumn("Capacity", ".status.capacity"),
        PrinterColumn("Mounted-By", ".status.mountedBy"),
        AGE_COLUMN,
    ),
)
