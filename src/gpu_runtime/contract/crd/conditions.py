"""Phases, reasons of the Ready condition, and the update of conditions in a status."""

from enum import StrEnum
from typing import TypeVar

from msgspec import structs

from gpu_runtime.kube.meta import Condition

READY_CONDITION = "Ready"
P = TypeVar("P", bound=StrEnum)


class UnitPhase(StrEnum):
    """The phase of a GPUUnit or StockPool. It summarizes the Ready condition. The condition also has the reason."""

    EMPTY = "Empty"
    PROGRESSING = "Progressing"
    READY = "Ready"
    FAILED = "Failed"


class StoragePhase(StrEnum):
    PENDING = "Pending"
    READY = "Ready"
    FAILED = "Failed"


class ReadyReason(StrEnum):
    """Reasons of the Ready condition. Do not rename a reason, because alerts and scripts match it."""

    # GPUUnits and StockPools
    INVALID_SPEC = "InvalidSpec"
    SCALED_TO_ZERO = "ScaledToZero"
    POD_STARTUP_FAILED = "PodStartupFailed"
    POD_STATUS_SYNC_FAILED = "PodStatusSyncFailed"
    SERVICE_SYNC_FAILED = "ServiceSyncFailed"
    DEPLOYMENT_SYNC_FAILED = "DeploymentSyncFailed"
    NETWORK_POLICY_SYNC_FAILED = "NetworkPolicySyncFailed"
    NAME_TAKEN = "NameTaken"
    """An object with the name of a child already exists and belongs to another owner."""

    # StockPools
    DEPLOYMENT_PROGRESSING = "DeploymentProgressing"
    DEPLOYMENT_READY = "DeploymentReady"

    # GPUUnits
    UNIT_PROGRESSING = "UnitProgressing"
    UNIT_READY = "UnitReady"
    STOCK_RELEASING = "StockReleasing"
    """The pod of the consumed stock unit still holds the GPUs."""
    REQUEST_ID_TAKEN = "RequestIDTaken"
    """Another function owns the requestID."""
    WORKER_NOT_RECORDED = "WorkerNotRecorded"
    """The unit has `serverless.workerOf`, but no FunctionQueue records it as a worker."""
    STORAGE_NOT_READY = "StorageNotReady"
    STORAGE_MOUNT_INVALID = "StorageMountInvalid"

    # GPUStorages
    CLAIM_PENDING = "ClaimPending"
    WAIT_FOR_FIRST_CONSUMER = "WaitForFirstConsumer"
    """The provisioner creates the volume when the first unit mounts the storage, so a unit may mount the storage
    now."""
    CLAIM_LOST = "ClaimLost"
    CLAIM_SYNC_FAILED = "ClaimSyncFailed"
    RESIZE_PENDING = "ResizePending"
    RESIZE_REFUSED = "ResizeRefused"
    STORAGE_READY = "StorageReady"
    DELETING = "Deleting"
    """The storage is being deleted. The message says what the finalizer waits for."""


ADOPTABLE_CONDITION = "Adoptable"
"""The type of the condition of a StockPool that says whether a handoff may take its pods."""


class AdoptableReason(StrEnum):
    ADOPTABLE = "Adoptable"
    NOT_REQUESTED = "NotRequested"
    PLACEHOLDER = "Placeholder"
    """The pool has no image, or neither command nor args."""


def ready_condition(is_ready: bool, reason: ReadyReason, message: str, generation: int) -> Condition:
    """Return a Ready condition without a transition time.

    `set_condition` sets the time, because the time depends on the previous condition.
    """
    return Condition(
        type=READY_CONDITION,
        status="True" if is_ready else "False",
        reason=reason.value,
        message=message,
        observed_generation=generation,
    )


def set_condition(conditions: tuple[Condition, ...], new: Condition, now: str) -> tuple[Condition, ...]:
    """Replace the condition of the same type, or add the condition. The transition time changes only with the
    status."""
    old = find_condition(conditions, new.type)
    transition_time = old.last_transition_time if old and old.status == new.status else now
    updated = structs.replace(new, last_transition_time=transition_time)
    if old is None:
        return (*conditions, updated)
    return tuple(updated if each.type == new.type else each for each in conditions)


def find_condition(conditions: tuple[Condition, ...], condition_type: str) -> Condition | None:
    return next((each for each in conditions if each.type == condition_type), None)


def current_ready_condition(conditions: tuple[Condition, ...]) -> Condition:
    """Return the Ready condition. Before the first reconcile, it is unknown and has no reason."""
    return find_condition(conditions, READY_CONDITION) or Condition(type=READY_CONDITION, status="Unknown")


def known_phase(phase: str | None, default: P) -> P:
    """Return the phase of a status, or the default if the phase is missing or this version does not know it."""
    try:
        return type(default)(phase or default)
    except ValueError:
        return default
