"""What callers do with units that exist. Reads come from the cache; every decision to write rests on a live read.

Making a unit is the handoff's part: this only checks the request and passes it on.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from msgspec import UNSET, structs

from gpu_runtime.contract.crd.gpu_storage import Attachment
from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS, GPUUnit, GPUUnitSpec
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.contract.errors import Conflict, Invalid, NotFound, Unavailable
from gpu_runtime.contract.validation import name_problems
from gpu_runtime.kube import errors as kube
from gpu_runtime.kube.client import Client
from gpu_runtime.kube.meta import Key
from gpu_runtime.kube.retry import Backoff
from gpu_runtime.runtime_api.api_informers import Caches
from gpu_runtime.runtime_api.http.paging import page
from gpu_runtime.runtime_api.kube_error_mapping import translated
from gpu_runtime.runtime_api.settings import Namespaces
from gpu_runtime.runtime_api.storages.storage_attacher import Attachments
from gpu_runtime.runtime_api.units.merge_patch import difference
from gpu_runtime.runtime_api.units.requests import CreateUnit, ListUnits, UpdateUnit
from gpu_runtime.runtime_api.units.unit_admission import accepted, chosen, updated
from gpu_runtime.runtime_api.units.view import phase_of

ATTEMPTS = 20
"""How often a write is tried against others who write the same unit. Of those that collide, one always wins."""
_APART = Backoff(first=0.01, longest=0.5, spread=0.5)

Change = Callable[[GPUUnitSpec], GPUUnitSpec]
Settle = Callable[[str], Awaitable[None]]
"""Brings the operation of this operationID to its end if it has none, so that nothing goes on making its unit."""


class Creator(Protocol):
    async def create(self, request: CreateUnit) -> tuple[GPUUnit, bool]:
        """The unit, and whether this request was the first under its operationID."""
        ...


@dataclass(frozen=True)
class Units:
    client: Client
    caches: Caches
    namespaces: Namespaces
    creator: Creator
    settle: Settle
    attachments: Attachments

    async def create(self, request: CreateUnit) -> tuple[GPUUnit, bool]:
        unit, first = await self.creator.create(accepted(request, self.namespaces))
        self.caches.units.learn(unit)
        return unit, first

    async def get(self, namespace: str, name: str) -> GPUUnit:
        """From the cache; what that does not know may have been made on another replica a moment ago."""
        key = self._key(namespace, name)
        known = self.caches.units.store.get(key)
        return known if known is not None else await self._read(key)

    def list(self, query: ListUnits) -> tuple[Sequence[GPUUnit], str | None]:
        """A page of the units, and where the next one begins."""
        namespaces = (chosen(query.namespace, self.namespaces),) if query.namespace else self.namespaces.units
        if not self.caches.units.has_synced:  # an empty list would be a lie
            raise Unavailable("the units are still being read; try again", retry_after=1)
        known = self.caches.units.store.all()
        wanted = [unit for unit in known if unit.metadata.namespace in namespaces and _matches(unit, query)]
        return page(wanted, lambda unit: unit.metadata.key, query.limit, query.after)

    async def update(self, namespace: str, name: str, request: UpdateUnit) -> GPUUnit:
        return await self._change(self._key(namespace, name), lambda spec: updated(spec, request))

    async def stop(self, namespace: str, name: str) -> GPUUnit:
        """Take its pod away and keep everything else."""
        return await self._change(self._key(namespace, name), lambda spec: structs.replace(spec, running=False))

    async def start(self, namespace: str, name: str) -> GPUUnit:
        return await self._change(self._key(namespace, name), lambda spec: structs.replace(spec, running=True))

    async def delete(self, namespace: str, name: str) -> None:
        unit = await self._read(self._key(namespace, name))
        operation_id = unit.metadata.annotations.get(Annotation.OPERATION_ID, "")
        if operation_id:
            await self.settle(operation_id)
        await self._end(unit)
        if not unit.metadata.finalizers:  # else it lives on until they are gone
            self.caches.units.forget(unit.metadata.key, unit.metadata.uid)

    async def _change(self, key: Key, change: Change) -> GPUUnit:
        for attempt in range(1, ATTEMPTS + 1):
            unit = await self._read(key)
            try:
                return await self._write(unit, change(unit.spec))
            except kube.Conflict as conflict:  # the status is written, too, and every write makes a new version
                lost = conflict
            await asyncio.sleep(_APART.delay(attempt))
        raise translated(lost) from lost

    async def _write(self, unit: GPUUnit, wanted: GPUUnitSpec) -> GPUUnit:
        patch = difference(unit.spec, wanted)
        if not patch:
            return unit
        if unit.metadata.deletion_timestamp is not None:
            raise Conflict(f"unit {unit.metadata.key} is being deleted")
        await self._attach(unit, wanted)
        with _in_product_words(unit.metadata.key):
            written = await self.client.merge_patch(
                GPU_UNITS,
                unit.metadata.key,
                {"spec": patch},
                resource_version=unit.metadata.resource_version,
            )
        self.caches.units.learn(written)
        return written

    async def _attach(self, unit: GPUUnit, wanted: GPUUnitSpec) -> None:
        """Before the unit names a storage, it holds it. If the write then fails, the controller manager releases it."""
        held = {mount.name for mount in unit.spec.storage_mounts}
        gained = [mount.name for mount in wanted.storage_mounts if mount.name not in held]
        namespace, holder = unit.metadata.namespace, Attachment(unit=unit.metadata.name)
        if gained and (missing := await self.attachments.missing(namespace, wanted.storage_mounts)):
            raise Invalid(missing)
        await self.attachments.check(namespace, gained, holder)
        await self.attachments.attach(namespace, gained, holder)

    async def _end(self, unit: GPUUnit) -> None:
        """That it is gone already is as good: whatever has its name now is another unit."""
        with suppress(NotFound, kube.Conflict), _in_product_words(unit.metadata.key):
            await self.client.delete(GPU_UNITS, unit.metadata.key, uid=unit.metadata.uid)

    async def _read(self, key: Key) -> GPUUnit:
        with _in_product_words(key):
            found = await self.client.get(GPU_UNITS, key)
        self.caches.units.learn(found)
        return found

    def _key(self, namespace: str, name: str) -> Key:
        key = Key(chosen(namespace, self.namespaces), name)
        if any(name_problems(name)):  # no unit can have it, and it need not stand in a path
            raise _unknown(key)
        return key


def _matches(unit: GPUUnit, query: ListUnits) -> bool:
    return (
        query.spec_name in ("", unit.spec.spec_name)
        and query.phase in (UNSET, phase_of(unit))
        and query.serverless in (UNSET, unit.spec.is_function)
    )


def _unknown(key: Key) -> NotFound:
    return NotFound(f"there is no unit {key.name!r} in {key.namespace}")


@contextmanager
def _in_product_words(key: Key) -> Iterator[None]:
    """Translates what Kubernetes refuses, except a lost race: whoever ran it decides what that means."""
    try:
        yield
    except kube.Conflict:
        raise
    except kube.NotFound as error:
        raise _unknown(key) from error
    except kube.KubeError as error:
        raise translated(error) from error
