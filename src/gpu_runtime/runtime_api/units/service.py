"""Gets, lists, updates, starts, stops and deletes GPU units.

Reads use the informer cache. Every write is based on a live read from the API server. The handoff creates units: this
module only validates the create request and passes it on.
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
from gpu_runtime.contract.errors import BeingDeleted, Invalid, NotFound, Unavailable
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
"""Maximum number of attempts to write a unit while other writers change it. One of several concurrent writes always
succeeds."""
_CONFLICT_BACKOFF = Backoff(initial_seconds=0.01, max_seconds=0.5, jitter=0.5)

MutateSpec = Callable[[GPUUnitSpec], GPUUnitSpec]
FinishOperation = Callable[[str], Awaitable[None]]
"""Finishes the operation with this operationID if it is in progress, so that no replica creates its unit later."""


class UnitCreator(Protocol):
    async def create(self, request: CreateUnit) -> tuple[GPUUnit, bool]:
        """Return the unit, and whether this request created it. False for a replay of the operationID."""
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
        """Read the unit from the cache, or from the API server if the cache lacks it.

        Another replica may just have created the unit.
        """
        key = self._key(namespace, name)
        cached = self.informers.units.store.get(key)
        return cached if cached is not None else await self._get_live(key)

    def list(self, query: ListUnits) -> tuple[Sequence[GPUUnit], str | None]:
        """Return one page of units and the continue token of the next page."""
        namespaces = (
            (resolve_namespace(query.namespace, self.namespaces),) if query.namespace else self.namespaces.units
        )
        if not self.informers.units.has_synced:  # a list from an incomplete cache would be wrong
            raise Unavailable("the list of units is still loading; try again", retry_after=1)
        cached = self.informers.units.store.all()
        matching = [unit for unit in cached if unit.metadata.namespace in namespaces and _matches(unit, query)]
        return paginate(matching, lambda unit: unit.metadata.key, query.limit, query.after)

    async def update(self, namespace: str, name: str, request: UpdateUnit) -> GPUUnit:
        return await self._update_spec(self._key(namespace, name), lambda spec: apply_update(spec, request))

    async def stop(self, namespace: str, name: str) -> GPUUnit:
        """Remove the unit's pod. The unit, its Service and its storages stay."""
        return await self._update_spec(self._key(namespace, name), lambda spec: structs.replace(spec, running=False))

    async def start(self, namespace: str, name: str) -> GPUUnit:
        return await self._update_spec(self._key(namespace, name), lambda spec: structs.replace(spec, running=True))

    async def delete(self, namespace: str, name: str) -> None:
        unit = await self._get_live(self._key(namespace, name))
        operation_id = unit.metadata.annotations.get(Annotation.OPERATION_ID, "")
        if operation_id:
            await self.finish_operation(operation_id)
        await self._delete(unit)
        if not unit.metadata.finalizers:  # with finalizers, the unit exists until the last one is removed
            self.informers.units.record_delete(unit.metadata.key, unit.metadata.uid)

    async def _update_spec(self, key: ObjectKey, mutate: MutateSpec) -> GPUUnit:
        for attempt in range(1, MAX_WRITE_ATTEMPTS + 1):
            unit = await self._get_live(key)
            try:
                return await self._patch_spec(unit, mutate(unit.spec))
            except kube.KubeConflict as conflict:  # a status update also changes the resourceVersion
                last_conflict = conflict
            await asyncio.sleep(_CONFLICT_BACKOFF.delay(attempt))
        raise fault_from_kube_error(last_conflict) from last_conflict

    async def _patch_spec(self, unit: GPUUnit, desired: GPUUnitSpec) -> GPUUnit:
        patch = create_merge_patch(unit.spec, desired)
        if not patch:
            return unit
        if unit.metadata.deletion_timestamp is not None:
            raise BeingDeleted(f"unit {unit.metadata.key} is being deleted and cannot be changed")
        await self._attach_added_storages(unit, desired)
        with _translate_kube_errors(unit.metadata.key):
            written = await self.client.merge_patch(
                GPU_UNITS,
                unit.metadata.key,
                {"spec": patch},
                resource_version=unit.metadata.resource_version,
            )
        self.informers.units.record_write(written)
        return written

    async def _attach_added_storages(self, unit: GPUUnit, desired: GPUUnitSpec) -> None:
        """Attach new storages before the unit mounts them.

        If the write of the unit fails afterwards, the controller manager detaches them.
        """
        mounted = {mount.name for mount in unit.spec.storage_mounts}
        added = [mount.name for mount in desired.storage_mounts if mount.name not in mounted]
        namespace, holder = unit.metadata.namespace, Attachment(unit=unit.metadata.name)
        if added and (missing := await self.attacher.find_missing(namespace, desired.storage_mounts)):
            raise Invalid(missing)
        await self.attacher.check_available(namespace, added, holder)
        await self.attacher.attach(namespace, added, holder)

    async def _delete(self, unit: GPUUnit) -> None:
        """Delete the unit by UID. NotFound and Conflict mean that the unit is already deleted."""
        with suppress(NotFound, kube.KubeConflict), _translate_kube_errors(unit.metadata.key):
            await self.client.delete(GPU_UNITS, unit.metadata.key, uid=unit.metadata.uid)

    async def _get_live(self, key: ObjectKey) -> GPUUnit:
        with _translate_kube_errors(key):
            unit = await self.client.get(GPU_UNITS, key)
        self.informers.units.record_write(unit)
        return unit

    def _key(self, namespace: str, name: str) -> ObjectKey:
        key = ObjectKey(resolve_namespace(namespace, self.namespaces), name)
        if any(name_errors(name)):  # no unit can have this name, and it may be unsafe in a URL path
            raise _not_found(key)
        return key


def _matches(unit: GPUUnit, query: ListUnits) -> bool:
    return (
        query.spec_name in ("", unit.spec.spec_name)
        and query.phase in (UNSET, phase_of(unit))
        and query.serverless in (UNSET, unit.spec.is_function)
    )


def _not_found(key: ObjectKey) -> NotFound:
    return NotFound(f"unit {key.name!r} does not exist in namespace {key.namespace}")


@contextmanager
def _translate_kube_errors(key: ObjectKey) -> Iterator[None]:
    """Translate Kubernetes errors into faults, except KubeConflict, which the caller retries or ignores."""
    try:
        yield
    except kube.KubeConflict:
        raise
    except kube.KubeNotFound as error:
        raise _not_found(key) from error
    except kube.KubeError as error:
        raise fault_from_kube_error(error) from error
