"""The last look before an attachment is released: at the API server itself, since a cache may lag behind."""

from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS
from gpu_runtime.contract.crd.operation import OPERATIONS, OperationState
from gpu_runtime.contract.crd.well_known import OWNED_SELECTOR, Label, operation_name
from gpu_runtime.controller_manager.gpu_storage.attachment import AskOperation, LookAgain, Release, Step, mounts
from gpu_runtime.controller_manager.indexes import claim_keys
from gpu_runtime.kube.builtin_kinds import PODS
from gpu_runtime.kube.client import Client
from gpu_runtime.kube.codec import Selection
from gpu_runtime.kube.errors import NotFound
from gpu_runtime.kube.meta import Key

ASK_AGAIN_SECONDS = 2.0
"""An operation that is not finished is finished or given up within seconds. Nobody tells this process when."""


async def confirmed(client: Client, storage: Key, step: Step, operations: str) -> Step:
    """The step, if it may be taken. Operations are looked for in the given namespace."""
    match step:
        case AskOperation(operation_id, unit):
            if not await _has_ended(client, Key(operations, operation_name(operation_id))):
                return LookAgain(ASK_AGAIN_SECONDS)
            # Only now: a unit that the operation made was there before the operation ended.
            if await _is_wanted(client, storage, unit):
                return LookAgain(ASK_AGAIN_SECONDS)
            return await confirmed(client, storage, Release(unit), operations)
        case Release(unit) if await _has_pods(client, storage, unit):
            return LookAgain(ASK_AGAIN_SECONDS)
    return step


async def _has_ended(client: Client, operation: Key) -> bool:
    """An operation is recorded before it attaches anything, so one that is not there was forgotten since."""
    try:
        found = await client.get(OPERATIONS, operation)
    except NotFound:
        return True
    return found.status.state in (OperationState.SUCCEEDED, OperationState.FAILED)


async def _is_wanted(client: Client, storage: Key, unit: str) -> bool:
    try:
        found = await client.get(GPU_UNITS, Key(storage.namespace, unit))
    except NotFound:
        return False
    return mounts(found, storage.name)


async def _has_pods(client: Client, storage: Key, unit: str) -> bool:
    selection = Selection(storage.namespace, labels=f"{OWNED_SELECTOR},{Label.UNIT}={unit}")
    return any(str(storage) in claim_keys(pod) for pod in (await client.list(PODS, selection)).items)
