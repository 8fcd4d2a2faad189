"""Phases, reasons of the Ready condition, and the update of conditions in a status."""

from enum import StrEnum

from gpu_runtime.kube.meta import Condition

READY_CONDITION = "Ready"


class UnitPhase(StrEnum):
    """The phase of GPUUnits and StockPools: a summary of the Ready condition, which has the reason."""

    EMPTY = "Empty"
    PROGRESSING = "Progressing"
    READY = "Ready"
    FAILED = "Failed"


class StoragePhase(StrEnum):
    PENDING = "Pending"
    READY = "Ready"
    FAILED = "Failed"


class ReadyReason(StrEnum):
    """Reasons of the Ready condition. Alerts and scripts match them, so they must not change."""

    # GPUUnits and StockPools
    INVALID_SPEC = "InvalidSpec"
    SCALED_TO_ZERO = "ScaledToZero"
    POD_STARTUP_FAILED = "PodStartupFailed"
    POD_STATUS_SYNC_FAILED = "PodStatusSyncFailed"
    SERVICE_SYNC_FAILED = "ServiceSyncFailed"
    DEPLOYMENT_SYNC_FAILED = "DeploymentSyncFailed"
    NETWORK_POLICY_SYNC_FAILED = "NetworkPolicySyncFailed"
    NAME_TAKEN = "NameTaken"
    """An object with the name of a child exists and belongs to another owner."""

    # StockPools
    DEPLOYMENT_PROGRESSING = "DeploymentProgressing"
    DEPLOYMENT_READY = "DeploymentReady"

    # GPUUnits
    UNIT_PROGRESSING = "UnitProgressing"
    UNIT_READY = "UnitReady"
    STOCK_RELEASING = "StockReleasing"
    """The pod of the consumed stock unit still holds the GPUs."""
    STORAGE_NOT_READY = "StorageNotReady"
    STORAGE_MOUNT_INVALID = "StorageMountInvalid"

    # GPUStorages
    CLAIM_PENDING = "ClaimPending"
    WAIT_FOR_FIRST_CONSUMER = "WaitForFirstConsumer"
    """The volume is created when the first unit mounts the storage. A unit may mount it before the volume exists."""
    CLAIM_LOST = "ClaimLost"
    CLAIM_SYNC_FAILED = "ClaimSyncFailed"
    RESIZE_PENDING = "ResizePending"
    RESIZE_REFUSED = "ResizeRefused"
    STORAGE_READY = "StorageReady"
    DELETING = "Deleting"
    """The storage is being deleted. The message says what the finalizer waits for."""


def ready_condition(is_ready: bool, reason: ReadyReason, message: str, generation: int) -> Condition:
    """A Ready condition without its transition time. `set_condition` sets the time, because it compares both states."""
    return Condition(
        type=READY_CONDITION,
        status="True" if is_ready else "False",
        reason=reason.value,
        message=message,
        observed_generation=generation,
    )


def set_condition(conditions: tuple[Condition, ...], new: Condition, now: str) -> tuple[Condition, ...]:
    """Replace the condition of the same type, or add it. Its transition time changes only when its status changes."""
    old = find_condition(conditions, new.type)
    transition_time = old.last_transition_time if old and old.status == new.status else now
    updated = Condition(
        type=new.type,
        status=new.status,
        reason=new.reason,
        message=new.message,
        last_transition_time=transition_time,
        observed_generation=new.observed_generation,
    )
    if old is None:
        return (*conditions, updated)
    return tuple(updated if each.type == new.type else each for each in conditions)


def find_condition(conditions: tuple[Condition, ...], condition_type: str) -> Condition | None:
    return next((each for each in conditions if each.type == condition_type), None)
