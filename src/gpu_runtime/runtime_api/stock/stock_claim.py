"""Claims on stock: whether one stands, and how it is taken back."""

from enum import StrEnum

from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS, GPUUnit
from gpu_runtime.contract.crd.operation import Operation, OperationState
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.kube import errors as kube
from gpu_runtime.kube.client import KubeClient


class ClaimState(StrEnum):
    VALID = "stands"
    """Its operation is under way."""
    CONSUMED = "consumed"
    """Its operation has succeeded: the stock has become a unit."""
    STALE = "unwanted"
    """Its operation has failed, has chosen other stock, or is not known."""


def claim_state(operation: Operation | None, stock_uid: str) -> ClaimState:
    chosen = operation.effective_status.stock if operation is not None else None
    if operation is None or chosen is None or chosen.uid != stock_uid:
        return ClaimState.STALE
    match OperationState(operation.status.state):
        case OperationState.SUCCEEDED:
            return ClaimState.CONSUMED
        case OperationState.FAILED:
            return ClaimState.STALE
    return ClaimState.VALID


async def release_claim(client: KubeClient, unit: GPUUnit | None, operation_id: str) -> bool:
    """Let others claim the stock again, if this operation has claimed it. False where it has changed meanwhile."""
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
