"""Gets, lists, updates, starts, stops and deletes GPU units.

Reads use the informer cache. Every write is based on a live read from the API server. The handoff creates units: this
module only validates the create request and passes it on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec import UNSET, structs

from gpu_runtime.contract.crd.gpu_unit import GPUUnit, GPUUnitSpec
from gpu_runtime.contract.errors import BeingDeleted, Invalid, NotFound, Unavailable
from gpu_runtime.contract.validation import name_errors
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.runtime_api.admission_errors import listed_namespaces, resolve_namespace
from gpu_runtime.runtime_api.api_informers import APIInformers
from gpu_runtime.runtime_api.http.paging import paginate
from gpu_runtime.runtime_api.live_objects import delete_this, patch_this, read_live, retry_conflicts
from gpu_runtime.runtime_api.operations.drive import OperationRunner
from gpu_runtime.runtime_api.operations.storage_attacher import StorageAttacher
from gpu_runtime.runtime_api.settings import APINamespaceSettings
from gpu_runtime.runtime_api.units.handoff import Handoff
from gpu_runtime.runtime_api.units.merge_patch import create_merge_patch
from gpu_runtime.runtime_api.units.requests import CreateUnit, ListUnits, UpdateUnit
from gpu_runtime.runtime_api.units.unit_admission import admit_unit, apply_update
from gpu_runtime.runtime_api.units.view import phase_of

MutateSpec = Callable[[GPUUnitSpec], GPUUnitSpec]


@dataclass(frozen=True)
class UnitService:
    client: KubeClient
    informers: APIInformers
    namespaces: APINamespaceSettings
    handoff: Handoff
    operations: OperationRunner
    attacher: StorageAttacher

    async def create(self, request: CreateUnit) -> tuple[GPUUnit, bool]:
        """Return the unit, and whether this request created it. False for a replay of the operationID."""
        return await self.handoff.create(admit_unit(request, self.namespaces))

    async def get(self, namespace: str, name: str) -> GPUUnit:
        """Read the unit from the cache, or from the API server if the cache lacks it.

        Another replica may just have created the unit.
        """
        key = self._key(namespace, name)
        cached = self.informers.units.store.get(key)
        return cached if cached is not None else await self._get_live(key)

    def list(self, query: ListUnits) -> tuple[Sequence[GPUUnit], str | None]:
        """Return one page of units and the continue token of the next page."""
        namespaces = listed_namespaces(query.namespace, self.namespaces.units, "units")
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
        await self.operations.finish_creator(unit)
        await delete_this(self.client, self.informers.units, unit.metadata.key, unit.metadata.uid)

    async def _update_spec(self, key: ObjectKey, mutate: MutateSpec) -> GPUUnit:
        async def read_and_write() -> GPUUnit:
            unit = await self._get_live(key)
            return await self._patch_spec(unit, mutate(unit.spec))

        return await retry_conflicts(f"unit {key.name}", read_and_write)

    async def _patch_spec(self, unit: GPUUnit, desired: GPUUnitSpec) -> GPUUnit:
        patch = create_merge_patch(unit.spec, desired)
        if not patch:
            return unit
        if unit.metadata.deletion_timestamp is not None:
            raise BeingDeleted(f"unit {unit.metadata.key} is being deleted and cannot be changed")
        await self._attach_added_storages(unit, desired)
        return await patch_this(self.client, self.informers.units, unit, {"spec": patch})

    async def _attach_added_storages(self, unit: GPUUnit, desired: GPUUnitSpec) -> None:
        """Attach new storages before the unit mounts them.

        If the write of the unit fails afterwards, the controller manager detaches them.
        """
        mounted = {mount.name for mount in unit.spec.storage_mounts}
        added = [mount.name for mount in desired.storage_mounts if mount.name not in mounted]
        namespace = unit.metadata.namespace
        if added and (missing := await self.attacher.find_missing(namespace, desired.storage_mounts)):
            raise Invalid(missing)
        await self.attacher.attach(namespace, added, unit.metadata.name)

    async def _get_live(self, key: ObjectKey) -> GPUUnit:
        unit = await read_live(self.client, self.informers.units, key)
        if unit is None:
            raise _not_found(key)
        return unit

    def _key(self, namespace: str, name: str) -> ObjectKey:
        key = ObjectKey(resolve_namespace(namespace, self.namespaces.units, "units"), name)
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
