"""Reconciler of GPUStorages: attaches one storage, manages its PVC, writes its status and finalizes its deletion."""

from contextlib import suppress
from dataclasses import dataclass, replace

from gpu_runtime.contract.crd.conditions import ReadyReason, StoragePhase
from gpu_runtime.contract.crd.gpu_storage import GPUStorage
from gpu_runtime.contract.crd.well_known import Finalizer
from gpu_runtime.controller_manager.controller_informers import ControllerInformers
from gpu_runtime.controller_manager.gpu_storage.attachment import (
    AttachmentStep,
    AttachStorage,
    DetachStorage,
    RecheckAttachment,
    next_attachment_step,
)
from gpu_runtime.controller_manager.gpu_storage.children import expansion_patch, metadata_patch, pvc_manifest
from gpu_runtime.controller_manager.gpu_storage.detach_check import confirm_step
from gpu_runtime.controller_manager.gpu_storage.finalize import FinalizeStep, next_finalize_step
from gpu_runtime.controller_manager.gpu_storage.observe import ObservedStorage, observe
from gpu_runtime.controller_manager.gpu_storage.pvc_events import latest_pvc_warning
from gpu_runtime.controller_manager.gpu_storage.rules import STORAGE_RULES, first_violation
from gpu_runtime.controller_manager.gpu_storage.status import can_expand, expansion_refused, readiness, status_of
from gpu_runtime.controller_manager.gpu_storage.storage_readiness import StorageReadiness
from gpu_runtime.controller_manager.settings import ControllerManagerSettings
from gpu_runtime.controller_manager.storage_locks import StorageLocks
from gpu_runtime.controller_manager.workload.status_writer import StatusWriter
from gpu_runtime.controller_manager.workload.sync_children import POLL_REQUEUE_SECONDS
from gpu_runtime.kube.builtin_kinds import PVCS
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.controller import Done, ReconcileResult, RequeueAfter
from gpu_runtime.kube.errors import KubeForbidden, KubeInvalid, KubeNotFound
from gpu_runtime.kube.live_objects import find_live, patch_this
from gpu_runtime.kube.meta import Manifest

STORAGE_POLLED_REASONS = (
    ReadyReason.NAME_TAKEN,
    ReadyReason.CLAIM_SYNC_FAILED,
    ReadyReason.CLAIM_LOST,
    ReadyReason.CLAIM_PENDING,
    ReadyReason.WAIT_FOR_FIRST_CONSUMER,
    ReadyReason.RESIZE_REFUSED,
)
"""Reasons for which the controller requeues the storage, because their cause can disappear without a watched event."""


@dataclass(frozen=True)
class GPUStorageReconciler:
    client: KubeClient
    informers: ControllerInformers
    status_writer: StatusWriter
    settings: ControllerManagerSettings
    storage_locks: StorageLocks

    async def reconcile(self, storage: GPUStorage) -> ReconcileResult:
        key = storage.metadata.key
        async with self.storage_locks.acquire([key]):
            # The storage may have changed while this task waited for the lock.
            current = self.informers.storages.store.get(key)
            if current is None:
                return Done()
            observed = observe(current, self.informers, self.settings, self.status_writer.clock())
            return await (self._finalize(observed) if current.metadata.deletion_timestamp else self._sync(observed))

    async def _sync(self, observed: ObservedStorage) -> ReconcileResult:
        key = observed.storage.metadata.key
        step = await confirm_step(self.client, key, next_attachment_step(observed), self.settings.namespaces.system)
        observed = await self._patch_storage(observed, _storage_patch(observed, step))
        observed = await self._with_live_pvc(observed)
        result = first_violation(STORAGE_RULES, observed)
        if result is None:
            observed, rejected = await self._sync_pvc(observed)
            result = rejected or readiness(
                replace(observed, provisioner_warning=await latest_pvc_warning(self.client, observed))
            )
        await self._write_status(observed, result)
        if isinstance(step, RecheckAttachment):
            return RequeueAfter(step.seconds)
        return RequeueAfter(POLL_REQUEUE_SECONDS) if result.reason in STORAGE_POLLED_REASONS else Done()

    async def _with_live_pvc(self, observed: ObservedStorage) -> ObservedStorage:
        """Read the PVC from the API server if the cache does not contain it.

        The cache contains only PVCs with the platform's label, and another client may have removed the label.
        """
        if observed.pvc is not None:
            return observed
        return replace(observed, pvc=await find_live(self.client, PVCS, observed.storage.metadata.key))

    async def _sync_pvc(self, observed: ObservedStorage) -> tuple[ObservedStorage, StorageReadiness | None]:
        """Create or correct the PVC. If the API server rejects a write, return the readiness that reports the error."""
        try:
            observed = await self._create_or_update_pvc(observed)
        except (KubeForbidden, KubeInvalid) as error:
            text = f"the API server rejected the PersistentVolumeClaim: {error}"
            return observed, StorageReadiness(StoragePhase.FAILED, ReadyReason.CLAIM_SYNC_FAILED, text)
        if observed.pvc is None or not can_expand(observed):
            return observed, None
        try:
            return await self._patch_pvc(observed, expansion_patch(observed.pvc, observed.storage)), None
        except (KubeForbidden, KubeInvalid) as error:
            return observed, expansion_refused(observed, str(error))

    async def _create_or_update_pvc(self, observed: ObservedStorage) -> ObservedStorage:
        if observed.pvc is not None:
            return await self._patch_pvc(observed, metadata_patch(observed.pvc, observed.storage))
        created = await self.client.create(PVCS, pvc_manifest(observed.storage))
        self.informers.pvcs.record_write(created)
        return replace(observed, pvc=created)

    async def _patch_pvc(self, observed: ObservedStorage, patch: Manifest | None) -> ObservedStorage:
        if observed.pvc is None or patch is None:
            return observed
        return replace(observed, pvc=await patch_this(self.client, self.informers.pvcs, observed.pvc, patch))

    async def _patch_storage(self, observed: ObservedStorage, patch: Manifest) -> ObservedStorage:
        if not patch:
            return observed
        return replace(
            observed, storage=await patch_this(self.client, self.informers.storages, observed.storage, patch)
        )

    async def _finalize(self, observed: ObservedStorage) -> ReconcileResult:
        """Delete the PVC when no unit and no pod mounts it. Then remove the finalizer of the storage."""
        finalizers = observed.storage.metadata.finalizers
        if Finalizer.STORAGE_PROTECTION not in finalizers:
            return Done()
        observed = await self._with_live_pvc(observed)
        step = next_finalize_step(observed)
        if step.pvc_to_delete is not None:
            pvc = step.pvc_to_delete.metadata
            with suppress(KubeNotFound):
                await self.client.delete(PVCS, pvc.key, uid=pvc.uid)
        if step.waiting_for:
            return await self._requeue_finalize(observed, step)
        remaining = [each for each in finalizers if each != Finalizer.STORAGE_PROTECTION]
        await self._patch_storage(observed, {"metadata": {"finalizers": remaining}})
        return Done()

    async def _requeue_finalize(self, observed: ObservedStorage, step: FinalizeStep) -> ReconcileResult:
        phase = StoragePhase(observed.storage.status.phase or StoragePhase.PENDING)
        await self._write_status(
            observed, StorageReadiness(phase, ReadyReason.DELETING, f"the deletion waits for {step.waiting_for}")
        )
        return RequeueAfter(step.requeue_seconds)

    async def _write_status(self, observed: ObservedStorage, result: StorageReadiness) -> None:
        after = status_of(observed, result, self.status_writer.now())
        await self.status_writer.write_status(self.informers.storages, observed.storage, observed.storage.status, after)


def _storage_patch(observed: ObservedStorage, step: AttachmentStep) -> Manifest:
    """Return the patch that sets the finalizer and the attachment. The finalizer must exist before the PVC."""
    patch: Manifest = {}
    finalizers = observed.storage.metadata.finalizers
    if Finalizer.STORAGE_PROTECTION not in finalizers:
        patch["metadata"] = {"finalizers": [*finalizers, Finalizer.STORAGE_PROTECTION]}
    match step:
        case AttachStorage(unit):
            patch["spec"] = {"attachedTo": {"unit": unit}}
        case DetachStorage():
            patch["spec"] = {"attachedTo": None}
    return patch
