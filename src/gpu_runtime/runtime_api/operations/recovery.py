"""Finishes or undoes what a process left half-done when it died, on every replica and without a leader.

Four looks at the caches, every few seconds. Only what has not moved for a while is touched, and every write is
conditional: two replicas that sweep the same thing do no more than one.

    operations   those that are under way are driven to their end
    claims       stock that is claimed for an operation that does not want it is given back; consumed stock is deleted
    attachments  storages that an operation attached which makes no unit with them are released
    makings      an object that carries an operation's name and is not what the operation made is deleted
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NoReturn, TypeAlias, TypeVar

from gpu_runtime.contract.crd.gpu_storage import GPUStorage
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.operation import OperationState, OperationType
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.contract.errors import RuntimeFault
from gpu_runtime.kube import errors as kube
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.informer import Informer
from gpu_runtime.kube.meta import KubeObject
from gpu_runtime.runtime_api.api_informers import ATTACHED_INDEX, CLAIMED_INDEX, APIInformers
from gpu_runtime.runtime_api.clock import Clock
from gpu_runtime.runtime_api.operations.operation_store import (
    OperationStore,
    created_by,
    is_attempt_abandoned,
    is_finished,
    is_in_progress,
    is_orphan,
)
from gpu_runtime.runtime_api.operations.operation_summary import OperationSummary
from gpu_runtime.runtime_api.operations.stall_detector import StallDetector
from gpu_runtime.runtime_api.operations.state_machine import OperationExecutors
from gpu_runtime.runtime_api.settings import OperationSettings
from gpu_runtime.runtime_api.stock.stock_claim import ClaimState, claim_state, release_claim
from gpu_runtime.runtime_api.storages.storage_attacher import StorageAttacher

logger = logging.getLogger(__name__)
T = TypeVar("T")
_CreatedObject: TypeAlias = tuple[Informer[Any], KubeObject]
"""An object that says that an operation made it, and the cache it was found in."""

MAX_CONCURRENT_RECOVERIES = 8
"""How many things are looked into at a time."""


class OperationRecovery:
    def __init__(  # noqa: PLR0913 - what it looks at, and what it works with
        self,
        client: KubeClient,
        caches: APIInformers,
        ledger: OperationStore,
        drivers: OperationExecutors,
        *,
        settings: OperationSettings,
        clock: Clock,
    ) -> None:
        self._client = client
        self._informers = caches
        self._operation_store = ledger
        self._executors = drivers
        self._interval = settings.recovery_interval_seconds
        self._operation_stalls = StallDetector(clock, settings.stalled_after_seconds)
        self._claim_stalls = StallDetector(clock, settings.stalled_after_seconds)
        self._object_stalls = StallDetector(clock, settings.stalled_after_seconds)
        self._attachment_stalls = StallDetector(clock, settings.stalled_after_seconds)
        self._attacher = StorageAttacher(client, caches)
        self._unit_attachments: set[str] = set()
        """Attachments that units hold."""
        self._confirmed_uids: set[str] = set()
        """UIDs of objects that are known to be what their operation made."""

    async def run(self) -> NoReturn:
        while True:
            await asyncio.sleep(self._interval * random.uniform(0.8, 1.2))  # noqa: S311 - replicas out of step
            await self.run_once()

    async def run_once(self) -> None:
        await _for_each(self._resume_operation, self._stalled_operations())
        await _for_each(self._check_claim, self._stalled_claims())
        await _for_each(self._check_attachment, self._unconfirmed_attachments())
        await _for_each(self._confirm_objects, self._unconfirmed_objects())

    def _stalled_operations(self) -> list[OperationSummary]:
        """Those whose caller was told that there is no stock are not among them: it decides whether to ask again."""
        pending = [each for each in self._informers.unfinished_operations.store.all() if _needs_recovery(each)]
        left = self._operation_stalls.stalled((each.metadata.uid, each.metadata.resource_version) for each in pending)
        return [each for each in pending if each.metadata.uid in left]

    def _stalled_claims(self) -> list[GPUUnit]:
        claimed = self._informers.units.store.by_index(CLAIMED_INDEX, CLAIMED_INDEX)
        standing = self._claim_stalls.stalled(
            (each.metadata.uid, each.metadata.annotations[Annotation.CLAIMED_BY]) for each in claimed
        )
        return [each for each in claimed if each.metadata.uid in standing]

    def _unconfirmed_attachments(self) -> list[GPUStorage]:
        """Those of operations that have made their unit are the controller manager's, and looked into only once."""
        attached = {
            _attachment_id(each): each
            for each in self._informers.storages.store.by_index(ATTACHED_INDEX, ATTACHED_INDEX)
        }
        self._unit_attachments &= attached.keys()
        doubtful = self._attachment_stalls.stalled(
            (each, "") for each in attached if each not in self._unit_attachments
        )
        return [attached[each] for each in doubtful]

    def _unconfirmed_objects(self) -> list[tuple[str, list[_CreatedObject]]]:
        """What is not known to be its operation's, by operation: what one has seeded is confirmed by one read."""
        caches: tuple[Informer[Any], ...] = (self._informers.units, self._informers.pools)
        made = [(cache, each) for cache in caches for each in cache.store.all() if _operation_id(each)]
        self._confirmed_uids |= self._operation_store.pop_committed_uids()
        self._confirmed_uids &= {each.metadata.uid for _, each in made}
        doubtful = [(cache, each) for cache, each in made if each.metadata.uid not in self._confirmed_uids]
        old_enough = self._object_stalls.stalled((each.metadata.uid, "") for _, each in doubtful)
        makings: dict[str, list[_CreatedObject]] = {}
        for cache, each in doubtful:
            if each.metadata.uid in old_enough:
                makings.setdefault(_operation_id(each), []).append((cache, each))
        return list(makings.items())

    async def _resume_operation(self, pending: OperationSummary) -> None:
        operation = await self._operation_store.find(pending.spec.operation_id)
        if operation is None or is_finished(operation.status):
            return
        extra = {"operationID": operation.spec.operation_id, "type": operation.spec.type}
        logger.info("going on with an operation that was left", extra=extra)
        try:
            await self._executors[OperationType(operation.spec.type)].resume(operation)
        except RuntimeFault as fault:
            logger.info("the operation goes no further for now", extra={**extra, "error": fault.message})

    async def _check_claim(self, unit: GPUUnit) -> None:
        operation_id = unit.metadata.annotations[Annotation.CLAIMED_BY]
        operation = await self._operation_store.find(operation_id)
        match claim_state(operation, unit.metadata.uid):
            case ClaimState.CONSUMED:
                await self._delete(self._informers.units, unit)
            case ClaimState.STALE:
                logger.info("giving back stock that its operation does not want", extra=_log_fields(unit, operation_id))
                # If it has changed since, then perhaps for a new reason to keep it: the next sweep sees.
                await release_claim(self._client, unit, operation_id)

    async def _check_attachment(self, storage: GPUStorage) -> None:
        held = storage.spec.attached_to
        if held is None:
            return
        operation = await self._operation_store.find(held.operation_id)
        if operation is None or operation.status.state == OperationState.SUCCEEDED.value:
            self._unit_attachments.add(_attachment_id(storage))
        elif is_attempt_abandoned(operation, held.attempt):
            logger.info(
                "releasing a storage that its operation mounts nowhere", extra=_log_fields(storage, held.operation_id)
            )
            await self._attacher.detach_if_unchanged(storage)

    async def _confirm_objects(self, makings: tuple[str, list[_CreatedObject]]) -> None:
        operation_id, made = makings
        operation = await self._operation_store.find(operation_id)
        for cache, found in made:
            known = operation is not None and created_by(operation, found)
            if operation is None or not known or operation.status.has_created(found.metadata.uid):
                self._confirmed_uids.add(found.metadata.uid)
            elif is_orphan(operation, found):
                logger.warning("deleting what its operation did not make", extra=_log_fields(found, operation_id))
                await self._delete(cache, found)

    async def _delete(self, cache: Informer[Any], found: KubeObject) -> None:
        with contextlib.suppress(kube.KubeNotFound, kube.KubeConflict):
            await self._client.delete(cache.resource, found.metadata.key, uid=found.metadata.uid)
        cache.record_delete(found.metadata.key, found.metadata.uid)


async def _for_each(look: Callable[[T], Awaitable[None]], things: Iterable[T]) -> None:
    turns = asyncio.Semaphore(MAX_CONCURRENT_RECOVERIES)

    async def one(thing: T) -> None:
        async with turns:
            try:
                await look(thing)
            except kube.KubeError as error:  # the next sweep comes soon
                logger.warning("the sweep was interrupted", extra={"error": str(error)})
            except Exception:  # a bug met by one thing must stop neither the others nor the process
                logger.exception("the sweep cannot look into something")

    async with asyncio.TaskGroup() as tasks:
        for thing in things:
            tasks.create_task(one(thing))


def _needs_recovery(pending: OperationSummary) -> bool:
    return pending.spec.type != OperationType.CREATE_UNIT.value or is_in_progress(pending.progress)


def _attachment_id(storage: GPUStorage) -> str:
    held = storage.spec.attached_to
    return f"{storage.metadata.uid}/{held.operation_id}/{held.attempt}" if held else ""


def _operation_id(found: KubeObject) -> str:
    return found.metadata.annotations.get(Annotation.OPERATION_ID, "")


def _log_fields(found: KubeObject, operation_id: str) -> dict[str, object]:
    return {"object": str(found.metadata.key), "operationID": operation_id}
