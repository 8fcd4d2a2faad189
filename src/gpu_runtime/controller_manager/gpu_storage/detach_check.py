"""Confirms a detach with reads from the API server, because the informer caches may be stale."""

from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS
from gpu_runtime.contract.crd.operation import OPERATIONS
from gpu_runtime.contract.crd.well_known import MANAGED_BY_SELECTOR, Label, operation_name
from gpu_runtime.contract.operation_rules import AttachmentState, attachment_state
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
from gpu_runtime.kube.live_objects import find_live
from gpu_runtime.kube.meta import ObjectKey

DETACH_RECHECK_SECONDS = 2.0
"""Delay until the next check. This process does not watch operations, which normally finish within seconds."""


async def confirm_step(
    client: KubeClient, storage: ObjectKey, step: AttachmentStep, operation_namespace: str
) -> AttachmentStep:
    """Return the step if it is safe. Otherwise return `RecheckAttachment`.

    If the operation of a `CheckOperation` does not need the storage any more, and its unit does not mount it, the step
    becomes `DetachStorage`.
    """
    match step:
        case CheckOperation(attached):
            # The operation exists before it attaches a storage. None: it was evicted after it finished.
            key = ObjectKey(operation_namespace, operation_name(attached.operation_id))
            operation = await find_live(client, OPERATIONS, key)
            if attachment_state(operation, attached) is AttachmentState.NEEDED:
                return RecheckAttachment(DETACH_RECHECK_SECONDS)
            # Read the unit only now: an operation creates its unit before it succeeds, so this read cannot miss it.
            if await _unit_mounts_storage(client, storage, attached.unit):
                return RecheckAttachment(DETACH_RECHECK_SECONDS)
            return await confirm_step(client, storage, DetachStorage(attached.unit), operation_namespace)
        case DetachStorage(unit) if await _has_mounting_pods(client, storage, unit):
            return RecheckAttachment(DETACH_RECHECK_SECONDS)
    return step


async def _unit_mounts_storage(client: KubeClient, storage: ObjectKey, unit: str) -> bool:
    live = await find_live(client, GPU_UNITS, ObjectKey(storage.namespace, unit))
    return live is not None and mounts_storage(live, storage.name)


async def _has_mounting_pods(client: KubeClient, storage: ObjectKey, unit: str) -> bool:
    options = ListOptions(storage.namespace, label_selector=f"{MANAGED_BY_SELECTOR},{Label.UNIT}={unit}")
    return any(str(storage) in pvc_index_keys(pod) for pod in (await client.list(PODS, options)).items)
