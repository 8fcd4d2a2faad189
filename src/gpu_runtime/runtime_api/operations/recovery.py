"""Recovery of operations after a crash: resumes stalled operations, and removes what failed operations left.

Every replica runs recovery; there is no leader. Every few seconds, recovery checks the informer caches for the five
cases below. It handles only objects that have not changed for some time. Every write has a precondition, so that
several replicas that handle the same object have the same effect as one replica.

    operations   resume operations that are in progress
    claims       release the claim if the operation does not use the stock unit; delete consumed stock units
    pods         delete claimed pods that will never belong to a unit
    attachments  detach storages that an abandoned attempt attached
    objects      delete objects that an operation created but did not commit to
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NoReturn, TypeAlias, TypeVar

from gpu_runtime.contract.crd.gpu_storage import GPUStorage
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.operation import Operation, OperationSummary
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.contract.errors import RuntimeFault
from gpu_runtime.contract.operation_rules import (
    AttachmentState,
    ClaimState,
    OperationProgress,
    Ownership,
    attachment_state,
    claim_state,
    ownership,
    progress_of,
)
from gpu_runtime.contract.prepared_pods import awaits_pod
from gpu_runtime.kube import errors as kube
from gpu_runtime.kube.builtin_kinds import Pod
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.informer import Informer
from gpu_runtime.kube.live_objects import delete_this, patch_unchanged, read_live
from gpu_runtime.kube.meta import KubeObject
from gpu_runtime.process.clock import Clock
from gpu_runtime.runtime_api.api_informers import ATTACHED_INDEX, CLAIMED_INDEX, APIInformers
from gpu_runtime.runtime_api.operations.drive import OperationRunner
from gpu_runtime.runtime_api.operations.stall_detector import StallDetector
from gpu_runtime.runtime_api.operations.storage_attacher import StorageAttacher
from gpu_runtime.runtime_api.settings import OperationSettings

logger = logging.getLogger(__name__)
T = TypeVar("T")
_CreatedObject: TypeAlias = tuple[Informer[Any], KubeObject]
"""An object whose annotations name an operation as its creator, and the informer whose cache contains the object."""

MAX_CONCURRENT_RECOVERIES = 8


class OperationRecovery:
    def __init__(
        self,
        client: KubeClient,
        informers: APIInformers,
        operations: OperationRunner,
        *,
        settings: OperationSettings,
        clock: Clock,
    ) -> None:
        self._client = client
        self._informers = informers
        self._operations = operations
        self._operation_store = operations.store
        self._interval = settings.recovery_interval_seconds
        self._operation_stalls = StallDetector(clock, settings.stalled_after_seconds)
        self._claim_stalls = StallDetector(clock, settings.stalled_after_seconds)
        self._pod_stalls = StallDetector(clock, settings.stalled_after_seconds)
        self._object_stalls = StallDetector(clock, settings.stalled_after_seconds)
        self._attachment_stalls = StallDetector(clock, settings.stalled_after_seconds)
        self._attacher = StorageAttacher(client, informers)
        self._unit_attachments: set[str] = set()
        """IDs of attachments whose operation has created its unit. The controller manager is responsible for them."""
        self._confirmed_uids: set[str] = set()
        """UIDs of objects that need no further check: their operation has committed to them, or no longer exists."""

    async def run(self) -> NoReturn:
        while True:
            await asyncio.sleep(self._interval * random.uniform(0.8, 1.2))  # noqa: S311 - jitter
            await self.run_once()

    async def run_once(self) -> None:
        await _for_each(self._resume_operation, self._stalled_operations())
        await _for_each(self._check_claim, self._stalled_claims())
        await _for_each(self._check_claimed_pod, self._stalled_pods())
        await _for_each(self._check_attachment, self._unconfirmed_attachments())
        await _for_each(self._confirm_objects, self._unconfirmed_objects())

    def _stalled_operations(self) -> list[OperationSummary]:
        """Return operations without progress. Operations that wait for stock are omitted, because their caller decides
        whether to try again."""
        cached = self._informers.unfinished_operations.store.all()
        unfinished = [each for each in cached if progress_of(each) is OperationProgress.IN_PROGRESS]
        stalled = self._operation_stalls.stalled(
            (each.metadata.uid, each.metadata.resource_version) for each in unfinished
        )
        return [each for each in unfinished if each.metadata.uid in stalled]

    def _stalled_claims(self) -> list[GPUUnit]:
        claimed = self._informers.units.store.by_index(CLAIMED_INDEX, CLAIMED_INDEX)
        stalled = self._claim_stalls.stalled(
            (each.metadata.uid, each.metadata.annotations[Annotation.CLAIMED_BY]) for each in claimed
        )
        return [each for each in claimed if each.metadata.uid in stalled]

    def _stalled_pods(self) -> list[Pod]:
        """Return the claimed pods that no ReplicaSet of a unit owns."""
        claimed = self._informers.claimed_pods()
        stalled = self._pod_stalls.stalled((each.metadata.uid, "") for each in claimed)
        return [each for each in claimed if each.metadata.uid in stalled]

    def _unconfirmed_attachments(self) -> list[GPUStorage]:
        """Return attachments for which this replica does not know yet that the operation has created its unit.

        After the unit exists, recovery stops checking the attachment, because the controller manager is responsible
        for it.
        """
        attached = {
            _attachment_id(each): each
            for each in self._informers.storages.store.by_index(ATTACHED_INDEX, ATTACHED_INDEX)
        }
        self._unit_attachments &= attached.keys()
        unconfirmed = self._attachment_stalls.stalled(
            (each, "") for each in attached if each not in self._unit_attachments
        )
        return [attached[each] for each in unconfirmed]

    def _unconfirmed_objects(self) -> list[tuple[str, list[_CreatedObject]]]:
        """Return objects for which this replica does not know yet that their operation has committed to them.

        The objects are grouped by operationID, so that one read confirms all stock units of a seed operation.
        """
        informers: tuple[Informer[Any], ...] = (self._informers.units, self._informers.pools)
        created = [(informer, each) for informer in informers for each in informer.store.all() if _operation_id(each)]
        self._confirmed_uids |= self._operation_store.pop_committed_uids()
        self._confirmed_uids &= {each.metadata.uid for _, each in created}
        unconfirmed = [(informer, each) for informer, each in created if each.metadata.uid not in self._confirmed_uids]
        stalled = self._object_stalls.stalled((each.metadata.uid, "") for _, each in unconfirmed)
        by_operation: dict[str, list[_CreatedObject]] = {}
        for informer, each in unconfirmed:
            if each.metadata.uid in stalled:
                by_operation.setdefault(_operation_id(each), []).append((informer, each))
        return list(by_operation.items())

    async def _resume_operation(self, stalled: OperationSummary) -> None:
        operation = await self._operation_store.find(stalled.spec.operation_id)
        if operation is None or progress_of(operation) is not OperationProgress.IN_PROGRESS:
            return
        extra = {"operation_id": operation.spec.operation_id, "operation_type": operation.spec.type}
        logger.info("stalled operation found; recovery will resume the operation", extra=extra)
        try:
            await self._operations.resume(operation)
        except RuntimeFault as fault:
            logger.info("operation step failed; recovery will retry", extra={**extra, "error": fault.message})

    async def _check_claim(self, unit: GPUUnit) -> None:
        operation_id = unit.metadata.annotations[Annotation.CLAIMED_BY]
        operation = await self._operation_store.find(operation_id)
        match claim_state(operation, unit.metadata.uid):
            case ClaimState.CONSUMED:
                await self._delete(self._informers.units, unit)
            case ClaimState.STALE:
                logger.info(
                    "stale stock claim found; recovery will release the claim", extra=_log_fields(unit, operation_id)
                )
                # If the unit has changed in the meantime, the claim stays, and the next run checks it again.
                released = {"metadata": {"annotations": {Annotation.CLAIMED_BY: None}}}
                await patch_unchanged(self._client, self._informers.units, unit, released)

    async def _check_claimed_pod(self, pod: Pod) -> None:
        """Delete the pod, unless the operation can still create its unit, or the unit exists and can adopt the pod."""
        operation_id = pod.metadata.annotations[Annotation.CLAIMED_BY]
        operation = await self._operation_store.find(operation_id)
        state = claim_state(operation, pod.metadata.uid)
        if (
            operation is None
            or state is ClaimState.STALE
            or (state is ClaimState.CONSUMED and not await self._will_be_adopted(operation, pod))
        ):
            fields = _log_fields(pod, operation_id)
            logger.info("claimed pod without a unit found; recovery will delete the pod", extra=fields)
            await self._delete(self._informers.prepared_pods[pod.metadata.namespace], pod)

    async def _will_be_adopted(self, operation: Operation, pod: Pod) -> bool:
        unit = await read_live(self._client, self._informers.units, operation.target_key)
        return unit is not None and awaits_pod(unit, operation, pod)

    async def _check_attachment(self, storage: GPUStorage) -> None:
        attachment = storage.spec.attached_to
        if attachment is None:
            return
        operation = await self._operation_store.find(attachment.operation_id)
        match attachment_state(operation, attachment):
            case AttachmentState.UNIT_DECIDES:
                self._unit_attachments.add(_attachment_id(storage))
            case AttachmentState.UNNEEDED:
                fields = _log_fields(storage, attachment.operation_id) | {"attempt": attachment.attempt}
                logger.info("stale storage attachment found; recovery will detach the storage", extra=fields)
                # If the storage has changed in the meantime, the next run checks it again.
                await self._attacher.write(storage, None)

    async def _confirm_objects(self, group: tuple[str, list[_CreatedObject]]) -> None:
        operation_id, created = group
        operation = await self._operation_store.find(operation_id)
        for informer, each in created:
            match ownership(operation, each) if operation is not None else Ownership.FOREIGN:
                case Ownership.FOREIGN | Ownership.ADOPTABLE | Ownership.COMMITTED:
                    self._confirmed_uids.add(each.metadata.uid)
                case Ownership.ORPHANED:
                    fields = _log_fields(each, operation_id) | {"kind": informer.resource.kind}
                    logger.warning("orphaned object found; recovery will delete the object", extra=fields)
                    await self._delete(informer, each)

    async def _delete(self, informer: Informer[Any], subject: KubeObject) -> None:
        await delete_this(self._client, informer, subject.metadata.key, subject.metadata.uid)


async def _for_each(recover: Callable[[T], Awaitable[None]], items: Iterable[T]) -> None:
    semaphore = asyncio.Semaphore(MAX_CONCURRENT_RECOVERIES)

    async def run_one(item: T) -> None:
        async with semaphore:
            try:
                await recover(item)
            except kube.KubeError as error:  # the next run tries again
                fields = _step_fields(recover.__name__, item) | {"error": str(error)}
                logger.warning("recovery step failed; recovery will retry", extra=fields)
            except Exception:  # an unexpected error in one item must not stop the others, nor the process
                fields = _step_fields(recover.__name__, item)
                logger.exception("recovery step raised an unexpected exception; recovery will retry", extra=fields)

    async with asyncio.TaskGroup() as tasks:
        for item in items:
            tasks.create_task(run_one(item))


def _attachment_id(storage: GPUStorage) -> str:
    attachment = storage.spec.attached_to
    return f"{storage.metadata.uid}/{attachment.operation_uid}/{attachment.attempt}" if attachment else ""


def _operation_id(created: KubeObject) -> str:
    return created.metadata.annotations.get(Annotation.OPERATION_ID, "")


def _step_fields(step: str, item: object) -> dict[str, object]:
    """The log fields that identify a step of the recovery pass and its item."""
    fields: dict[str, object] = {"step": step.lstrip("_")}
    match item:
        case KubeObject(metadata=metadata):
            return fields | {"namespace": metadata.namespace, "object_name": metadata.name}
        case (str(operation_id), _):
            return fields | {"operation_id": operation_id}
    return fields


def _log_fields(subject: KubeObject, operation_id: str) -> dict[str, object]:
    metadata = subject.metadata
    return {"namespace": metadata.namespace, "object_name": metadata.name, "operation_id": operation_id}
