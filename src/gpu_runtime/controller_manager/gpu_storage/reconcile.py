"""Keeps one GPUStorage true."""

from contextlib import suppress
from dataclasses import dataclass, replace

from gpu_runtime.contract.crd.conditions import ReadyReason, StoragePhase
from gpu_runtime.contract.crd.gpu_storage import GPU_STORAGES, GPUStorage
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
from gpu_runtime.kube.meta import Manifest

STORAGE_POLLED_REASONS = (
    ReadyReason.NAME_TAKEN,
    ReadyReason.CLAIM_SYNC_FAILED,
    ReadyReason.CLAIM_LOST,
    ReadyReason.CLAIM_PENDING,
    ReadyReason.WAIT_FOR_FIRST_CONSUMER,
    ReadyReason.RESIZE_REFUSED,
)
"""Reasons that may end without an event that this process hears of."""


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
            # What waited for its turn may have changed meanwhile.
            current = self.informers.storages.store.get(key)
            if current is None:
                return Done()
            seen = observe(current, self.informers, self.settings, self.status_writer.clock())
            return await (self._finalize(seen) if current.metadata.deletion_timestamp else self._sync(seen))

    async def _sync(self, seen: ObservedStorage) -> ReconcileResult:
        key = seen.storage.metadata.key
        step = await confirm_step(self.client, key, next_attachment_step(seen), self.settings.namespaces.system)
        seen = await self._patch_storage(seen, _storage_patch(seen, step))
        seen = await self._with_live_pvc(seen)
        thought = first_violation(STORAGE_RULES, seen)
        if thought is None:
            seen, refusal = await self._sync_pvc(seen)
            thought = refusal or readiness(
                replace(seen, provisioner_warning=await latest_pvc_warning(self.client, seen))
            )
        await self._write_status(seen, thought)
        return _requeue_outcome(step, thought)

    async def _with_live_pvc(self, seen: ObservedStorage) -> ObservedStorage:
        """The cache knows only claims with the platform's label. One that is missing there may have lost it."""
        if seen.pvc is not None:
            return seen
        try:
            return replace(seen, pvc=await self.client.get(PVCS, seen.storage.metadata.key))
        except KubeNotFound:
            return seen

    async def _sync_pvc(self, seen: ObservedStorage) -> tuple[ObservedStorage, StorageReadiness | None]:
        """The claim as it should be, and what Kubernetes said where it refused that."""
        try:
            seen = await self._create_or_update_pvc(seen)
        except (KubeForbidden, KubeInvalid) as refusal:
            text = f"PersistentVolumeClaim is refused: {refusal}"
            return seen, StorageReadiness(StoragePhase.FAILED, ReadyReason.CLAIM_SYNC_FAILED, text)
        if seen.pvc is None or not can_expand(seen):
            return seen, None
        try:
            return await self._patch_pvc(seen, expansion_patch(seen.pvc, seen.storage)), None
        except (KubeForbidden, KubeInvalid) as refusal:
            return seen, expansion_refused(seen, str(refusal))

    async def _create_or_update_pvc(self, seen: ObservedStorage) -> ObservedStorage:
        if seen.pvc is not None:
            return await self._patch_pvc(seen, metadata_patch(seen.pvc, seen.storage))
        created = await self.client.create(PVCS, pvc_manifest(seen.storage))
        self.informers.pvcs.record_write(created)
        return replace(seen, pvc=created)

    async def _patch_pvc(self, seen: ObservedStorage, change: Manifest | None) -> ObservedStorage:
        if seen.pvc is None or change is None:
            return seen
        version = seen.pvc.metadata.resource_version
        written = await self.client.merge_patch(PVCS, seen.pvc.metadata.key, change, resource_version=version)
        self.informers.pvcs.record_write(written)
        return replace(seen, pvc=written)

    async def _patch_storage(self, seen: ObservedStorage, change: Manifest) -> ObservedStorage:
        """One write, on the condition that the storage is still what was looked at."""
        if not change:
            return seen
        key, version = seen.storage.metadata.key, seen.storage.metadata.resource_version
        written = await self.client.merge_patch(GPU_STORAGES, key, change, resource_version=version)
        self.informers.storages.record_write(written)
        return replace(seen, storage=written)

    async def _finalize(self, seen: ObservedStorage) -> ReconcileResult:
        """Data goes last: when nothing mounts it, and with the storage that was told to go."""
        finalizers = seen.storage.metadata.finalizers
        if Finalizer.STORAGE_PROTECTION not in finalizers:
            return Done()
        seen = await self._with_live_pvc(seen)
        step = next_finalize_step(seen)
        if step.pvc_to_delete is not None:
            found = step.pvc_to_delete.metadata
            with suppress(KubeNotFound):
                await self.client.delete(PVCS, found.key, uid=found.uid)
        if step.waiting_for:
            return await self._requeue_finalize(seen, step)
        left = [each for each in finalizers if each != Finalizer.STORAGE_PROTECTION]
        await self._patch_storage(seen, {"metadata": {"finalizers": left}})
        return Done()

    async def _requeue_finalize(self, seen: ObservedStorage, step: FinalizeStep) -> ReconcileResult:
        phase = StoragePhase(seen.storage.status.phase or StoragePhase.PENDING)
        await self._write_status(
            seen, StorageReadiness(phase, ReadyReason.DELETING, f"the deletion waits for {step.waiting_for}")
        )
        return RequeueAfter(step.requeue_seconds)

    async def _write_status(self, seen: ObservedStorage, thought: StorageReadiness) -> None:
        after = status_of(seen, thought, self.status_writer.now())
        await self.status_writer.write_status(self.informers.storages, seen.storage, seen.storage.status, after)


def _storage_patch(seen: ObservedStorage, step: AttachmentStep) -> Manifest:
    """What the storage itself must become before anything is made of it."""
    change: Manifest = {}
    finalizers = seen.storage.metadata.finalizers
    if Finalizer.STORAGE_PROTECTION not in finalizers:
        change["metadata"] = {"finalizers": [*finalizers, Finalizer.STORAGE_PROTECTION]}
    match step:
        case AttachStorage(unit):
            change["spec"] = {"attachedTo": {"unit": unit}}
        case DetachStorage():
            change["spec"] = {"attachedTo": None}
    return change


def _requeue_outcome(step: AttachmentStep, thought: StorageReadiness) -> ReconcileResult:
    if isinstance(step, RecheckAttachment):
        return RequeueAfter(step.seconds)
    return RequeueAfter(POLL_REQUEUE_SECONDS) if thought.reason in STORAGE_POLLED_REASONS else Done()
