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
from gpu_runtime.kube.client import Client
from gpu_runtime.kube.informer import Informer
from gpu_runtime.kube.meta import Object
from gpu_runtime.runtime_api.api_informers import ATTACHED, CLAIMED, Caches
from gpu_runtime.runtime_api.clock import Clock
from gpu_runtime.runtime_api.operations.operation_store import (
    Ledger,
    disowns,
    is_finished,
    is_given_up,
    is_under_way,
    made_by,
)
from gpu_runtime.runtime_api.operations.operation_summary import PendingOperation
from gpu_runtime.runtime_api.operations.stall_detector import Unmoved
from gpu_runtime.runtime_api.operations.state_machine import Drivers
from gpu_runtime.runtime_api.settings import Operations
from gpu_runtime.runtime_api.stock.stock_claim import Claim, claim_of, give_back
from gpu_runtime.runtime_api.storages.storage_attacher import Attachments

logger = logging.getLogger(__name__)
T = TypeVar("T")
_Making: TypeAlias = tuple[Informer[Any], Object]
"""An object that says that an operation made it, and the cache it was found in."""

AT_ONCE = 8
"""How many things are looked into at a time."""


class Sweep:
    def __init__(  # noqa: PLR0913 - what it looks at, and what it works with
        self,
        client: Client,
        caches: Caches,
        ledger: Ledger,
        drivers: Drivers,
        *,
        settings: Operations,
        clock: Clock,
    ) -> None:
        self._client = client
        self._caches = caches
        self._ledger = ledger
        self._drivers = drivers
        self._pause = settings.sweep_seconds
        self._left = Unmoved(clock, settings.orphaned_seconds)
        self._claimed = Unmoved(clock, settings.orphaned_seconds)
        self._made = Unmoved(clock, settings.orphaned_seconds)
        self._attached = Unmoved(clock, settings.orphaned_seconds)
        self._attachments = Attachments(client, caches)
        self._units_own: set[str] = set()
        """Attachments that units hold."""
        self._confirmed: set[str] = set()
        """UIDs of objects that are known to be what their operation made."""

    async def run(self) -> NoReturn:
        while True:
            await asyncio.sleep(self._pause * random.uniform(0.8, 1.2))  # noqa: S311 - replicas out of step
            await self.once()

    async def once(self) -> None:
        await _each(self._finish, self._left_operations())
        await _each(self._look_at_claim, self._standing_claims())
        await _each(self._look_at_attachment, self._doubtful_attachments())
        await _each(self._confirm, self._unconfirmed())

    def _left_operations(self) -> list[PendingOperation]:
        """Those whose caller was told that there is no stock are not among them: it decides whether to ask again."""
        pending = [each for each in self._caches.pending.store.all() if _must_end(each)]
        left = self._left.among((each.metadata.uid, each.metadata.resource_version) for each in pending)
        return [each for each in pending if each.metadata.uid in left]

    def _standing_claims(self) -> list[GPUUnit]:
        claimed = self._caches.units.store.by(CLAIMED, CLAIMED)
        standing = self._claimed.among(
            (each.metadata.uid, each.metadata.annotations[Annotation.CLAIMED_BY]) for each in claimed
        )
        return [each for each in claimed if each.metadata.uid in standing]

    def _doubtful_attachments(self) -> list[GPUStorage]:
        """Those of operations that have made their unit are the controller manager's, and looked into only once."""
        attached = {_attachment(each): each for each in self._caches.storages.store.by(ATTACHED, ATTACHED)}
        self._units_own &= attached.keys()
        doubtful = self._attached.among((each, "") for each in attached if each not in self._units_own)
        return [attached[each] for each in doubtful]

    def _unconfirmed(self) -> list[tuple[str, list[_Making]]]:
        """What is not known to be its operation's, by operation: what one has seeded is confirmed by one read."""
        caches: tuple[Informer[Any], ...] = (self._caches.units, self._caches.pools)
        made = [(cache, each) for cache in caches for each in cache.store.all() if _operation_of(each)]
        self._confirmed |= self._ledger.committed()
        self._confirmed &= {each.metadata.uid for _, each in made}
        doubtful = [(cache, each) for cache, each in made if each.metadata.uid not in self._confirmed]
        old_enough = self._made.among((each.metadata.uid, "") for _, each in doubtful)
        makings: dict[str, list[_Making]] = {}
        for cache, each in doubtful:
            if each.metadata.uid in old_enough:
                makings.setdefault(_operation_of(each), []).append((cache, each))
        return list(makings.items())

    async def _finish(self, pending: PendingOperation) -> None:
        operation = await self._ledger.find(pending.spec.operation_id)
        if operation is None or is_finished(operation.status):
            return
        extra = {"operationID": operation.spec.operation_id, "type": operation.spec.type}
        logger.info("going on with an operation that was left", extra=extra)
        try:
            await self._drivers[OperationType(operation.spec.type)].carry(operation)
        except RuntimeFault as fault:
            logger.info("the operation goes no further for now", extra={**extra, "error": fault.message})

    async def _look_at_claim(self, unit: GPUUnit) -> None:
        operation_id = unit.metadata.annotations[Annotation.CLAIMED_BY]
        operation = await self._ledger.find(operation_id)
        match claim_of(operation, unit.metadata.uid):
            case Claim.CONSUMED:
                await self._delete(self._caches.units, unit)
            case Claim.UNWANTED:
                logger.info("giving back stock that its operation does not want", extra=_extra(unit, operation_id))
                # If it has changed since, then perhaps for a new reason to keep it: the next sweep sees.
                await give_back(self._client, unit, operation_id)

    async def _look_at_attachment(self, storage: GPUStorage) -> None:
        held = storage.spec.attached_to
        if held is None:
            return
        operation = await self._ledger.find(held.operation_id)
        if operation is None or operation.status.state == OperationState.SUCCEEDED.value:
            self._units_own.add(_attachment(storage))
        elif is_given_up(operation, held.attempt):
            logger.info(
                "releasing a storage that its operation mounts nowhere", extra=_extra(storage, held.operation_id)
            )
            await self._attachments.release_once(storage)

    async def _confirm(self, makings: tuple[str, list[_Making]]) -> None:
        operation_id, made = makings
        operation = await self._ledger.find(operation_id)
        for cache, found in made:
            known = operation is not None and made_by(operation, found)
            if operation is None or not known or operation.status.commits_to(found.metadata.uid):
                self._confirmed.add(found.metadata.uid)
            elif disowns(operation, found):
                logger.warning("deleting what its operation did not make", extra=_extra(found, operation_id))
                await self._delete(cache, found)

    async def _delete(self, cache: Informer[Any], found: Object) -> None:
        with contextlib.suppress(kube.NotFound, kube.Conflict):
            await self._client.delete(cache.resource, found.metadata.key, uid=found.metadata.uid)
        cache.forget(found.metadata.key, found.metadata.uid)


async def _each(look: Callable[[T], Awaitable[None]], things: Iterable[T]) -> None:
    turns = asyncio.Semaphore(AT_ONCE)

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


def _must_end(pending: PendingOperation) -> bool:
    return pending.spec.type != OperationType.CREATE_UNIT.value or is_under_way(pending.progress)


def _attachment(storage: GPUStorage) -> str:
    held = storage.spec.attached_to
    return f"{storage.metadata.uid}/{held.operation_id}/{held.attempt}" if held else ""


def _operation_of(found: Object) -> str:
    return found.metadata.annotations.get(Annotation.OPERATION_ID, "")


def _extra(found: Object, operation_id: str) -> dict[str, object]:
    return {"object": str(found.metadata.key), "operationID": operation_id}
