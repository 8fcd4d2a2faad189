"""The GPUStorage resource: persistent data that outlives the units that mount it."""

from typing import Annotated, ClassVar

from msgspec import field

from gpu_runtime.contract.crd.conditions import READY_CONDITION, ReadyReason, StoragePhase, find_condition
from gpu_runtime.contract.crd.markers import (
    AGE_COLUMN,
    READY_REASON_COLUMN,
    CelRule,
    ConditionList,
    CrdDefinition,
    PrinterColumn,
    immutable,
    openapi,
)
from gpu_runtime.contract.crd.template import Count, QuantityString
from gpu_runtime.contract.crd.well_known import DEFAULT_STORAGE_CLASS, GROUP, MAX_NAME_LENGTH, NAME_PATTERN, VERSION
from gpu_runtime.kube.meta import ApiResource, KubeObject, KubeStruct


class Attachment(KubeStruct, frozen=True, kw_only=True):
    """The only unit that may mount the storage."""

    unit: Annotated[str, openapi(pattern=NAME_PATTERN, maxLength=MAX_NAME_LENGTH)]
    """The name of the GPUUnit. An operation attaches the storage before it creates the unit, so it is possible that the
    unit does not exist yet."""

    operation_id: Annotated[str, openapi(maxLength=256)] = field(default="", name="operationID")
    """The operationID of the operation that attached the storage, or empty if no operation attached it. An update of
    the unit clears this field. This write changes the resource version of the storage. So if another process is about
    to detach the storage for the operation, the write of that process fails."""

    operation_uid: Annotated[str, openapi(maxLength=256)] = field(default="", name="operationUID")
    """The UID of the operation that attached the storage. After this operation was evicted, another operation may have
    the same operationID."""

    attempt: Count = 0
    """The number of the handoff attempt that attached the storage. The attempt belongs to the operation in operationID.
    A new attempt overwrites this field. This write changes the resource version of the storage. So if another process
    is about to detach the storage for an earlier attempt, the write of that process fails."""


class GPUStorageSpec(KubeStruct, frozen=True, kw_only=True):
    """The size and class of the volume, and the unit that may mount it."""

    RULES: ClassVar = (
        immutable(
            "storageClassName", "data cannot move to another StorageClass; create another storage and copy the data"
        ),
        CelRule(
            "!isQuantity(self.size) || !isQuantity(oldSelf.size)"
            " || quantity(self.size).compareTo(quantity(oldSelf.size)) >= 0",
            "size cannot be decreased, because a volume cannot shrink: create another storage",
            "size",
        ),
        CelRule(
            "!has(oldSelf.attachedTo) || !has(self.attachedTo) || self.attachedTo.unit == oldSelf.attachedTo.unit",
            "attachedTo cannot change from one unit to another: remove attachedTo first",
            "attachedTo",
        ),
    )

    size: QuantityString
    """The requested size of the volume, for example 20Gi. You can increase it, but not decrease it."""

    storage_class_name: Annotated[str, openapi(minLength=1, maxLength=253)] = DEFAULT_STORAGE_CLASS
    """The StorageClass that provisions the volume. Defaults to rook-ceph-block."""

    # In the spec, because it is a decision and not an observation. It must survive a restore that drops the status, and
    # it changes the generation. One write with the object's resource version decides which unit gets the storage.
    attached_to: Attachment | None = None
    """The only unit that may mount the storage. The platform sets this field before the pod of the unit starts. The
    platform removes the field when both conditions are true: no pod mounts the storage, and the unit is deleted or no
    longer lists the storage in spec.storageMounts. Do not set this field yourself."""


class GPUStorageStatus(KubeStruct, frozen=True, kw_only=True):
    """The observed state of the storage."""

    phase: Annotated[str, openapi(enum=[phase.value for phase in StoragePhase])] | None = None
    """Pending, Ready (units can mount the volume) or Failed. The Ready condition says whether the storage matches its
    spec. For example, if a volume cannot grow to spec.size, the phase is Ready and the Ready condition is False."""

    claim_name: str | None = None
    """The name of the PersistentVolumeClaim. It is the same as the name of the storage."""

    capacity: QuantityString | None = None
    """The actual capacity of the bound volume."""

    mounted_by: str | None = None
    """The name of the unit in spec.attachedTo. `kubectl get` shows this name in the column Mounted-By."""

    observed_generation: Annotated[int, openapi(format="int64")] = 0
    """The generation of the spec that this status describes."""

    last_sync_time: Annotated[str, openapi(format="date-time")] | None = None
    """The time of the last change of this status."""

    conditions: ConditionList = ()
    """The Ready condition, with a reason for programs and a message for people."""

    @property
    def mountable(self) -> bool:
        """Whether a unit may mount the storage now. Some StorageClasses create the volume only when a pod mounts it."""
        ready = find_condition(self.conditions, READY_CONDITION)
        waits_for_first_consumer = ready is not None and ready.reason == ReadyReason.WAIT_FOR_FIRST_CONSUMER.value
        return self.phase == StoragePhase.READY.value or waits_for_first_consumer


class GPUStorage(KubeObject, frozen=True, kw_only=True):
    """A persistent volume. The data stays when a unit that mounts the volume is deleted. Only the deletion of the
    GPUStorage deletes the data."""

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
