"""Gets, lists, updates, starts, stops and deletes GPU units.

Reads use the informer cache. Every write is based on a live read from the API server. The handoff creates units.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from msgspec import UNSET, structs

from gpu_runtime.contract.crd.gpu_unit import GPUUnit, GPUUnitSpec
from gpu_runtime.contract.errors import BeingDeleted, Invalid
from gpu_runtime.contract.validation.pod_policy import DEFAULT_POD_POLICY, PodPolicy
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.live_objects import delete_this, patch_this
from gpu_runtime.runtime_api.api_informers import APIInformers
from gpu_runtime.runtime_api.object_access import ObjectAccess
from gpu_runtime.runtime_api.operations.drive import OperationRunner
from gpu_runtime.runtime_api.operations.storage_attacher import StorageAttacher
from gpu_runtime.runtime_api.settings import APINamespaceSettings
from gpu_runtime.runtime_api.units.handoff import Handoff
from gpu_runtime.runtime_api.units.merge_patch import create_merge_patch
from gpu_runtime.runtime_api.units.request_id_owner import require_free_request_id
from gpu_runtime.runtime_api.units.requests import ListUnits, UpdateUnit
from gpu_runtime.runtime_api.units.unit_admission import apply_update, extend
from gpu_runtime.runtime_api.units.view import phase_of

MutateSpec = Callable[[GPUUnit], GPUUnitSpec]


@dataclass(frozen=True)
class UnitService:
    client: KubeClient
    informers: APIInformers
    namespaces: APINamespaceSettings
    handoff: Handoff
    operations: OperationRunner
    attacher: StorageAttacher
    pod_policy: PodPolicy = DEFAULT_POD_POLICY

    @property
    def _access(self) -> ObjectAccess[GPUUnit]:
        missing = "unit {name!r} does not exist in namespace {namespace}"
        return ObjectAccess(self.client, self.informers.units, "unit", missing, self.namespaces.units)

    async def get(self, namespace: str, name: str) -> GPUUnit:
        return await self._access.get(self._access.key(namespace, name))

    def list(self, query: ListUnits) -> tuple[Sequence[GPUUnit], str | None]:
        """Return one page of units and the continue token of the next page."""
        return self._access.list(query.namespace, query, lambda unit: _matches(unit, query))

    async def update(self, namespace: str, name: str, request: UpdateUnit) -> GPUUnit:
        return await self._update_spec(namespace, name, lambda unit: apply_update(unit, request, self.pod_policy))

    async def extend(self, namespace: str, name: str, until: datetime) -> GPUUnit:
        return await self._update_spec(namespace, name, lambda unit: extend(unit, until))

    async def stop(self, namespace: str, name: str) -> GPUUnit:
        """Remove the unit's pod. The unit, its Service and its storages stay."""
        return await self._update_spec(namespace, name, lambda unit: structs.replace(unit.spec, running=False))

    async def start(self, namespace: str, name: str) -> GPUUnit:
        return await self._update_spec(namespace, name, lambda unit: structs.replace(unit.spec, running=True))

    async def delete(self, namespace: str, name: str) -> None:
        unit = await self._access.get_live(self._access.key(namespace, name))
        for uid in await self.operations.finish_creator(unit):
            await delete_this(self.client, self.informers.units, unit.metadata.key, uid)

    async def _update_spec(self, namespace: str, name: str, mutate: MutateSpec) -> GPUUnit:
        key = self._access.key(namespace, name)
        return await self._access.read_and_write(key, lambda unit: self._patch_spec(unit, mutate(unit)))

    async def _patch_spec(self, unit: GPUUnit, desired: GPUUnitSpec) -> GPUUnit:
        patch = create_merge_patch(unit.spec, desired)
        if not patch:
            return unit
        if unit.metadata.deletion_timestamp is not None:
            raise BeingDeleted(f"unit {unit.metadata.key} is being deleted and cannot be changed")
        if not unit.spec.is_function:
            require_free_request_id(self.informers, unit.metadata.key, desired)
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


def _matches(unit: GPUUnit, query: ListUnits) -> bool:
    return (
        query.spec_name in ("", unit.spec.spec_name)
        and query.phase in (UNSET, phase_of(unit))
        and query.serverless in (UNSET, unit.spec.is_function)
    )
