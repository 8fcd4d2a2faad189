"""Phases, condition types and reasons, and how a condition changes over time."""

from enum import StrEnum

from gpu_runtime.kube.meta import Condition

READY_CONDITION = "Ready"


class UnitPhase(StrEnum):
    """Of GPUUnits and StockPools: the quick look. The Ready condition says why."""

    EMPTY = "Empty"
    PROGRESSING = "Progressing"
    READY = "Ready"
    FAILED = "Failed"


class StoragePhase(StrEnum):
    PENDING = "Pending"
    READY = "Ready"
    FAILED = "Failed"


class ReadyReason(StrEnum):
    """Reasons of the Ready condition. They are an interface: alerts and scripts match them."""

    # Of every workload.
    INVALID_SPEC = "InvalidSpec"
    SCALED_TO_ZERO = "ScaledToZero"
    POD_STARTUP_FAILED = "PodStartupFailed"
    POD_STATUS_SYNC_FAILED = "PodStatusSyncFailed"
    SERVICE_SYNC_FAILED = "ServiceSyncFailed"
    DEPLOYMENT_SYNC_FAILED = "DeploymentSyncFailed"
    NETWORK_POLICY_SYNC_FAILED = "NetworkPolicySyncFailed"
    NAME_TAKEN = "NameTaken"
    """An object with the child's name exists and belongs to somebody else."""

    # Of pools.
    DEPLOYMENT_PROGRESSING = "DeploymentProgressing"
    DEPLOYMENT_READY = "DeploymentReady"

    # Of units.
    UNIT_PROGRESSING = "UnitProgressing"
    UNIT_READY = "UnitReady"
    STOCK_RELEASING = "StockReleasing"
    """The claimed stock's pod still holds the GPUs."""
    STORAGE_NOT_READY = "StorageNotReady"
    STORAGE_MOUNT_INVALID = "StorageMountInvalid"

    # Of storages.
    CLAIM_PENDING = "ClaimPending"
    WAIT_FOR_FIRST_CONSUMER = "WaitForFirstConsumer"
    """The volume is made when the first unit mounts the storage: it can be mounted although it is not there yet."""
    CLAIM_LOST = "ClaimLost"
    CLAIM_SYNC_FAILED = "ClaimSyncFailed"
    RESIZE_PENDING = "ResizePending"
    RESIZE_REFUSED = "ResizeRefused"
    STORAGE_READY = "StorageReady"
    DELETING = "Deleting"
    """What the deletion still waits for."""


def ready_condition(is_ready: bool, reason: ReadyReason, message: str, generation: int) -> Condition:
    """A Ready condition that still lacks its time: `with_condition` knows whether this is a transition."""
    return Condition(
        type=READY_CONDITION,
        status="True" if is_ready else "False",
        reason=reason.value,
        message=message,
        observed_generation=generation,
    )


def set_condition(conditions: tuple[Condition, ...], new: Condition, now: str) -> tuple[Condition, ...]:
    """The conditions with the new one in its type's place. Its time moves only when its status does."""
    old = find_condition(conditions, new.type)
    since = old.last_transition_time if old and old.status == new.status else now
    dated = Condition(
        type=new.type,
        status=new.status,
        reason=new.reason,
        message=new.message,
        last_transition_time=since,
        observed_generation=new.observed_generation,
    )
    if old is None:
        return (*conditions, dated)
    return tuple(dated if each.type == new.type else each for each in conditions)


def find_condition(conditions: tuple[Condition, ...], kind: str) -> Condition | None:
    return next((each for each in conditions if each.type == kind), None)
