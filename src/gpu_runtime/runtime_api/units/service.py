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
from gpu_runtime.contract.validation import name_errors
from gpu_runtime.kube import errors as kube
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.kube.retry import Backoff
from gpu_runtime.runtime_api.api_informers import APIInformers
from gpu_runtime.runtime_api.http.paging import paginate
from gpu_runtime.runtime_api.kube_error_mapping import fault_from_kube_error
from gpu_runtime.runtime_api.settings import APINamespaceSettings
from gpu_runtime.runtime_api.storages.storage_attacher import StorageAttacher
from gpu_runtime.runtime_api.units.merge_patch import create_merge_patch
from gpu_runtime.runtime_api.units.requests import CreateUnit, ListUnits, UpdateUnit
from gpu_runtime.runtime_api.units.unit_admission import admit_unit, apply_update, resolve_namespace
from gpu_runtime.runtime_api.units.view import phase_of

MAX_WRITE_ATTEMPTS = 20
"""How often a write is tried against others who write the same unit. Of those that collide, one always wins."""
_CONFLICT_BACKOFF = Backoff(initial_seconds=0.01, max_seconds=0.5, jitter=0.5)

MutateSpec = Callable[[GPUUnitSpec], GPUUnitSpec]
FinishOperation = Callable[[str], Awaitable[None]]
"""Brings the operation of this operationID to its end if it has none, so that nothing goes on making its unit."""


class UnitCreator(Protocol):
    async def create(self, request: CreateUnit) -> tuple[GPUUnit, bool]:
        """The unit, and whether this request was the first under its operationID."""
        ...


@dataclass(frozen=True)
class UnitService:
    client: KubeClient
    informers: APIInformers
    namespaces: APINamespaceSettings
    creator: UnitCreator
    finish_operation: FinishOperation
    attacher: StorageAttacher

    async def create(self, request: CreateUnit) -> tuple[GPUUnit, bool]:
        unit, first = await self.creator.create(admit_unit(request, self.namespaces))
        self.informers.units.record_write(unit)
        return unit, first

    async def get(self, namespace: str, name: str) -> GPUUnit:
        """From the cache; what that does not know may have been made on another replica a moment ago."""
        key = self._key(namespace, name)
        known = self.informers.units.store.get(key)
        return known if known is not None else await self._get_live(key)

    def list(self, query: ListUnits) -> tuple[Sequence[GPUUnit], str | None]:
        """A page of the units, and where the next one begins."""
        namespaces = (
            (resolve_namespace(query.namespace, self.namespaces),) if query.namespace else self.namespaces.units
        )
        if not self.informers.units.has_synced:  # an empty list would be a lie
            raise Unavailable("the units are still being read; try again", retry_after=1)
        known = self.informers.units.store.all()
        wanted = [unit for unit in known if unit.metadata.namespace in namespaces and _matches(unit, query)]
        return paginate(wanted, lambda unit: unit.metadata.key, query.limit, query.after)

    async def update(self, namespace: str, name: str, request: UpdateUnit) -> GPUUnit:
        return await self._update_spec(self._key(namespace, name), lambda spec: apply_update(spec, request))

    async def stop(self, namespace: str, name: str) -> GPUUnit:
        """Take its pod away and keep everything else."""
        return await self._update_spec(self._key(namespace, name), lambda spec: structs.replace(spec, running=False))

    async def start(self, namespace: str, name: str) -> GPUUnit:
        return await self._update_spec(self._key(namespace, name), lambda spec: structs.replace(spec, running=True))

    async def delete(self, namespace: str, name: str) -> None:
        unit = await self._get_live(self._key(namespace, name))
        operation_id = unit.metadata.annotations.get(Annotation.OPERATION_ID, "")
        if operation_id:
            await self.finish_operation(operation_id)
        await self._delete(unit)
        if not unit.metadata.finalizers:  # else it lives on until they are gone
            self.informers.units.record_delete(unit.metadata.key, unit.metadata.uid)

    async def _update_spec(self, key: ObjectKey, change: MutateSpec) -> GPUUnit:
        for attempt in range(1, MAX_WRITE_ATTEMPTS + 1):
            unit = await self._get_live(key)
            try:
                return await self._patch_spec(unit, change(unit.spec))
            except kube.KubeConflict as conflict:  # the status is written, too, and every write makes a new version
                lost = conflict
            await asyncio.sleep(_CONFLICT_BACKOFF.delay(attempt))
        raise fault_from_kube_error(lost) from lost

    async def _patch_spec(self, unit: GPUUnit, wanted: GPUUnitSpec) -> GPUUnit:
        patch = create_merge_patch(unit.spec, wanted)
        if not patch:
            return unit
        if unit.metadata.deletion_timestamp is not None:
            raise Conflict(f"unit {unit.metadata.key} is being deleted")
        await self._attach_added_storages(unit, wanted)
        with _translate_kube_errors(unit.metadata.key):
            written = await self.client.merge_patch(
                GPU_UNITS,
                unit.metadata.key,
                {"spec": patch},
                resource_version=unit.metadata.resource_version,
            )
        self.informers.units.record_write(written)
        return written

    async def _attach_added_storages(self, unit: GPUUnit, wanted: GPUUnitSpec) -> None:
        """Before the unit names a storage, it holds it. If the write then fails, the controller manager releases it."""
        held = {mount.name for mount in unit.spec.storage_mounts}
        gained = [mount.name for mount in wanted.storage_mounts if mount.name not in held]
        namespace, holder = unit.metadata.namespace, Attachment(unit=unit.metadata.name)
        if gained and (missing := await self.attacher.find_missing(namespace, wanted.storage_mounts)):
            raise Invalid(missing)
        await self.attacher.check_available(namespace, gained, holder)
        await self.attacher.attach(namespace, gained, holder)

    async def _delete(self, unit: GPUUnit) -> None:
        """That it is gone already is as good: whatever has its name now is another unit."""
        with suppress(NotFound, kube.KubeConflict), _translate_kube_errors(unit.metadata.key):
            await self.client.delete(GPU_UNITS, unit.metadata.key, uid=unit.metadata.uid)

    async def _get_live(self, key: ObjectKey) -> GPUUnit:
        with _translate_kube_errors(key):
            found = await self.client.get(GPU_UNITS, key)
        self.informers.units.record_write(found)
        return found

    def _key(self, namespace: str, name: str) -> ObjectKey:
        key = ObjectKey(resolve_namespace(namespace, self.namespaces), name)
        if any(name_errors(name)):  # no unit can have it, and it need not stand in a path
            raise _not_found(key)
        return key


def _matches(unit: GPUUnit, query: ListUnits) -> bool:
    return (
        query.spec_name in ("", unit.spec.spec_name)
        and query.phase in (UNSET, phase_of(unit))
        and query.serverless in (UNSET, unit.spec.is_function)
    )


def _not_found(key: ObjectKey) -> NotFound:
    return NotFound(f"there is no unit {key.name!r} in {key.namespace}")


@contextmanager
def _translate_kube_errors(key: ObjectKey) -> Iterator[None]:
    """Translates what Kubernetes refuses, except a lost race: whoever ran it decides what that means."""
    try:
        yield
    except kube.KubeConflict:
        raise
    except kube.KubeNotFound as error:
        raise _not_found(key) from error
    except kube.KubeError as error:
        raise fault_from_kube_error(error) from error
