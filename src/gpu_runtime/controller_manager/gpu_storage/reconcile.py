"""Keeps one GPUStorage true."""

from contextlib import suppress
from dataclasses import dataclass, replace

from gpu_runtime.contract.crd.conditions import Reason, StoragePhase
from gpu_runtime.contract.crd.gpu_storage import GPU_STORAGES, GPUStorage
from gpu_runtime.contract.crd.well_known import Finalizer
from gpu_runtime.controller_manager.controller_informers import Caches
from gpu_runtime.controller_manager.gpu_storage.attachment import Attach, LookAgain, Release, Step, next_step
from gpu_runtime.controller_manager.gpu_storage.children import claim, corrected, growth
from gpu_runtime.controller_manager.gpu_storage.detach_check import confirmed
from gpu_runtime.controller_manager.gpu_storage.finalize import Ending, ending
from gpu_runtime.controller_manager.gpu_storage.observe import Observed, observe
from gpu_runtime.controller_manager.gpu_storage.pvc_events import complaint
from gpu_runtime.controller_manager.gpu_storage.rules import STORAGE_RULES, first_violation
from gpu_runtime.controller_manager.gpu_storage.status import may_grow, refused_growth, status_of, verdict
from gpu_runtime.controller_manager.gpu_storage.storage_readiness import Verdict
from gpu_runtime.controller_manager.settings import ControllerManagerSettings
from gpu_runtime.controller_manager.storage_locks import Turns
from gpu_runtime.controller_manager.workload.status_writer import Reporter
from gpu_runtime.controller_manager.workload.sync_children import RECHECK_SECONDS
from gpu_runtime.kube.builtin_kinds import CLAIMS
from gpu_runtime.kube.client import Client
from gpu_runtime.kube.controller import Outcome, RecheckIn, Settled
from gpu_runtime.kube.errors import Forbidden, Invalid, NotFound
from gpu_runtime.kube.meta import Manifest

UNTOLD = (
    Reason.NAME_TAKEN,
    Reason.CLAIM_SYNC_FAILED,
    Reason.CLAIM_LOST,
    Reason.CLAIM_PENDING,
    Reason.WAIT_FOR_FIRST_CONSUMER,
    Reason.RESIZE_REFUSED,
)
"""Reasons that may end without an event that this process hears of."""


@dataclass(frozen=True)
class GPUStorageReconciler:
    client: Client
    caches: Caches
    reporter: Reporter
    settings: ControllerManagerSettings
    turns: Turns

    async def reconcile(self, storage: GPUStorage) -> Outcome:
        key = storage.metadata.key
        async with self.turns.at([key]):
            # What waited for its turn may have changed meanwhile.
            current = self.caches.storages.store.get(key)
            if current is None:
                return Settled()
            seen = observe(current, self.caches, self.settings, self.reporter.clock())
            return await (self._end(seen) if current.metadata.deletion_timestamp else self._keep(seen))

    async def _keep(self, seen: Observed) -> Outcome:
        key = seen.storage.metadata.key
        step = await confirmed(self.client, key, next_step(seen), self.settings.namespaces.system)
        seen = await self._write_itself(seen, _own_change(seen, step))
        seen = await self._with_claim(seen)
        thought = first_violation(STORAGE_RULES, seen)
        if thought is None:
            seen, refusal = await self._make_claim(seen)
            thought = refusal or verdict(replace(seen, complaint=await complaint(self.client, seen)))
        await self._report(seen, thought)
        return _next_look(step, thought)

    async def _with_claim(self, seen: Observed) -> Observed:
        """The cache knows only claims with the platform's label. One that is missing there may have lost it."""
        if seen.claim is not None:
            return seen
        try:
            return replace(seen, claim=await self.client.get(CLAIMS, seen.storage.metadata.key))
        except NotFound:
            return seen

    async def _make_claim(self, seen: Observed) -> tuple[Observed, Verdict | None]:
        """The claim as it should be, and what Kubernetes said where it refused that."""
        try:
            seen = await self._create_or_correct(seen)
        except (Forbidden, Invalid) as refusal:
            text = f"PersistentVolumeClaim is refused: {refusal}"
            return seen, Verdict(StoragePhase.FAILED, Reason.CLAIM_SYNC_FAILED, text)
        if seen.claim is None or not may_grow(seen):
            return seen, None
        try:
            return await self._change_claim(seen, growth(seen.claim, seen.storage)), None
        except (Forbidden, Invalid) as refusal:
            return seen, refused_growth(seen, str(refusal))

    async def _create_or_correct(self, seen: Observed) -> Observed:
        if seen.claim is not None:
            return await self._change_claim(seen, corrected(seen.claim, seen.storage))
        created = await self.client.create(CLAIMS, claim(seen.storage))
        self.caches.claims.learn(created)
        return replace(seen, claim=created)

    async def _change_claim(self, seen: Observed, change: Manifest | None) -> Observed:
        if seen.claim is None or change is None:
            return seen
        version = seen.claim.metadata.resource_version
        written = await self.client.merge_patch(CLAIMS, seen.claim.metadata.key, change, resource_version=version)
        self.caches.claims.learn(written)
        return replace(seen, claim=written)

    async def _write_itself(self, seen: Observed, change: Manifest) -> Observed:
        """One write, on the condition that the storage is still what was looked at."""
        if not change:
            return seen
        key, version = seen.storage.metadata.key, seen.storage.metadata.resource_version
        written = await self.client.merge_patch(GPU_STORAGES, key, change, resource_version=version)
        self.caches.storages.learn(written)
        return replace(seen, storage=written)

    async def _end(self, seen: Observed) -> Outcome:
        """Data goes last: when nothing mounts it, and with the storage that was told to go."""
        finalizers = seen.storage.metadata.finalizers
        if Finalizer.STORAGE_PROTECTION not in finalizers:
            return Settled()
        seen = await self._with_claim(seen)
        step = ending(seen)
        if step.delete_claim is not None:
            found = step.delete_claim.metadata
            with suppress(NotFound):
                await self.client.delete(CLAIMS, found.key, uid=found.uid)
        if step.waits_for:
            return await self._wait(seen, step)
        left = [each for each in finalizers if each != Finalizer.STORAGE_PROTECTION]
        await self._write_itself(seen, {"metadata": {"finalizers": left}})
        return Settled()

    async def _wait(self, seen: Observed, step: Ending) -> Outcome:
        phase = StoragePhase(seen.storage.status.phase or StoragePhase.PENDING)
        await self._report(seen, Verdict(phase, Reason.DELETING, f"the deletion waits for {step.waits_for}"))
        return RecheckIn(step.look_again)

    async def _report(self, seen: Observed, thought: Verdict) -> None:
        after = status_of(seen, thought, self.reporter.now())
        await self.reporter.report(self.caches.storages, seen.storage, seen.storage.status, after)


def _own_change(seen: Observed, step: Step) -> Manifest:
    """What the storage itself must become before anything is made of it."""
    change: Manifest = {}
    finalizers = seen.storage.metadata.finalizers
    if Finalizer.STORAGE_PROTECTION not in finalizers:
        change["metadata"] = {"finalizers": [*finalizers, Finalizer.STORAGE_PROTECTION]}
    match step:
        case Attach(unit):
            change["spec"] = {"attachedTo": {"unit": unit}}
        case Release():
            change["spec"] = {"attachedTo": None}
    return change


def _next_look(step: Step, thought: Verdict) -> Outcome:
    if isinstance(step, LookAgain):
        return RecheckIn(step.seconds)
    return RecheckIn(RECHECK_SECONDS) if thought.reason in UNTOLD else Settled()
