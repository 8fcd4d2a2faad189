"""Decides whether the claim on a stock unit is valid, consumed or stale, and releases claims."""

from enum import StrEnum

from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS, GPUUnit
from gpu_runtime.contract.crd.operation import Operation, OperationState
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.kube import errors as kube
from gpu_runtime.kube.client import KubeClient


class ClaimState(StrEnum):
    VALID = "valid"
    """The operation is in progress and uses this stock unit."""
    CONSUMED = "consumed"
    """The operation has succeeded: the stock unit has become a unit."""
    STALE = "stale"
    """The operation has failed, has selected another stock unit, or does not exist."""


def claim_state(operation: Operation | None, stock_uid: str) -> ClaimState:
    selected = operation.effective_status.stock if operation is not None else None
    if operation is None or selected is None or selected.uid != stock_uid:
        return ClaimState.STALE
    match OperationState(operation.status.state):
        case OperationState.SUCCEEDED:
            return ClaimState.CONSUMED
        case OperationState.FAILED:
            return ClaimState.STALE
    return ClaimState.VALID


async def release_claim(client: KubeClient, unit: GPUUnit | None, operation_id: str) -> bool:
    """Remove the claim of this operation from the stock unit.

    Return True if this operation has no claim on the stock unit any more. Return False if another writer changed the
    stock unit in the meantime. Then read the stock unit again and repeat the call.
    """
    if unit is None or unit.metadata.annotations.get(Annotation.CLAIMED_BY) != operation_id:
        return True
    patch = {"metadata": {"annotations": {Annotation.CLAIMED_BY: None}}}
    version = unit.metadata.resource_version
    try:
        await client.merge_patch(GPU_UNITS, unit.metadata.key, patch, resource_version=version)
    except kube.KubeNotFound:
        return True
    except kube.KubeConflict:
        return False
    return True
