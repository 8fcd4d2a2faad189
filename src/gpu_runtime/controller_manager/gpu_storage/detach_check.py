"""The last look before an attachment is released: at the API server itself, since a cache may lag behind."""

from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS
from gpu_runtime.contract.crd.operation import OPERATIONS, OperationState
from gpu_runtime.contract.crd.well_known import MANAGED_BY_SELECTOR, Label, operation_name
from gpu_runtime.controller_manager.gpu_storage.attachment import (
    AttachmentStep,
    CheckOperation,
    DetachStorage,
    RecheckAttachment,
    mounts_storage,
)
from gpu_runtime.controller_manager.indexes import pvc_index_keys
from gpu_runtime.kube.builtin_kinds import PODS
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.codec import ListOptions
from gpu_runtime.kube.errors import KubeNotFound
from gpu_runtime.kube.meta import ObjectKey

DETACH_RECHECK_SECONDS = 2.0
"""An operation that is not finished is finished or given up within seconds. Nobody tells this process when."""


async def confirm_step(client: KubeClient, storage: ObjectKey, step: AttachmentStep, operations: str) -> AttachmentStep:
    """The step, if it may be taken. Operations are looked for in the given namespace."""
    match step:
        case CheckOperation(operation_id, unit):
            if not await _operation_finished(client, ObjectKey(operations, operation_name(operation_id))):
                return RecheckAttachment(DETACH_RECHECK_SECONDS)
            # Only now: a unit that the operation made was there before the operation ended.
            if await _unit_mounts_storage(client, storage, unit):
                return RecheckAttachment(DETACH_RECHECK_SECONDS)
            return await confirm_step(client, storage, DetachStorage(unit), operations)
        case DetachStorage(unit) if await _has_mounting_pods(client, storage, unit):
            return RecheckAttachment(DETACH_RECHECK_SECONDS)
    return step


async def _operation_finished(client: KubeClient, operation: ObjectKey) -> bool:
    """An operation is recorded before it attaches anything, so one that is not there was forgotten since."""
    try:
        found = await client.get(OPERATIONS, operation)
    except KubeNotFound:
        return True
    return found.status.state in (OperationState.SUCCEEDED, OperationState.FAILED)


async def _unit_mounts_storage(client: KubeClient, storage: ObjectKey, unit: str) -> bool:
    try:
        found = await client.get(GPU_UNITS, ObjectKey(storage.namespace, unit))
    except KubeNotFound:
        return False
    return mounts_storage(found, storage.name)


async def _has_mounting_pods(client: KubeClient, storage: ObjectKey, unit: str) -> bool:
    selection = ListOptions(storage.namespace, label_selector=f"{MANAGED_BY_SELECTOR},{Label.UNIT}={unit}")
    return any(str(storage) in pvc_index_keys(pod) for pod in (await client.list(PODS, selection)).items)
