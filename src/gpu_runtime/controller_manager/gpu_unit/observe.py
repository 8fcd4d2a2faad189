"""What is known of a unit and its surroundings, read from caches. Only this reads; deciders never do."""

from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from gpu_runtime.contract.crd.gpu_storage import GPUStorage
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.well_known import UnitRole, role_of
from gpu_runtime.controller_manager.controller_informers import ControllerInformers
from gpu_runtime.controller_manager.gpu_unit.source_stock import SourceStockRef, source_stock
from gpu_runtime.controller_manager.indexes import PODS_BY_PVC, PODS_BY_UNIT_UID
from gpu_runtime.controller_manager.settings import ControllerManagerSettings
from gpu_runtime.controller_manager.volume_refs import unit_storage_keys
from gpu_runtime.controller_manager.workload.unstructured import RawDeployment, RawNetworkPolicy, RawService
from gpu_runtime.kube.builtin_kinds import Pod
from gpu_runtime.kube.meta import KubeObject, ObjectKey


@dataclass(frozen=True)
class ObservedUnit:
    unit: GPUUnit
    settings: ControllerManagerSettings
    deployment: RawDeployment | None = None
    service: RawService | None = None
    network_policy: RawNetworkPolicy | None = None
    pods: tuple[Pod, ...] = ()
    pod_cache_error: str = ""
    """Why the cache of pods may be out of date, if it may."""
    storages: MappingProxyType[str, GPUStorage] = field(default_factory=lambda: MappingProxyType({}))
    mounting_pods: MappingProxyType[str, tuple[Pod, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """The pods that mount each of the storages, whoever's they are."""
    remaining_stock_objects: tuple[str, ...] = ()
    """What is left of the stock that the unit was made from, and may still hold its GPUs."""

    @property
    def role(self) -> UnitRole:
        return role_of(self.unit.metadata.namespace, self.settings.namespaces.stock)

    @cached_property
    def source_stock(self) -> SourceStockRef | None:
        return source_stock(self.unit)


def observe(unit: GPUUnit, caches: ControllerInformers, settings: ControllerManagerSettings) -> ObservedUnit:
    key, uid = unit.metadata.key, unit.metadata.uid
    return ObservedUnit(
        unit=unit,
        settings=settings,
        deployment=caches.deployments.store.get(key),
        service=caches.services.store.get(key),
        network_policy=caches.network_policies.store.get(key),
        pods=tuple(caches.pods.store.by_index(PODS_BY_UNIT_UID, uid)),
        pod_cache_error=caches.pods.last_error,
        storages=MappingProxyType(_storages(unit, caches)),
        mounting_pods=MappingProxyType(
            {each.name: tuple(caches.pods.store.by_index(PODS_BY_PVC, str(each))) for each in unit_storage_keys(unit)}
        ),
        remaining_stock_objects=_remaining_stock_objects(source_stock(unit), caches),
    )


def _storages(unit: GPUUnit, caches: ControllerInformers) -> dict[str, GPUStorage]:
    found = {key.name: caches.storages.store.get(key) for key in unit_storage_keys(unit)}
    return {name: storage for name, storage in found.items() if storage is not None}


def _remaining_stock_objects(stock: SourceStockRef | None, caches: ControllerInformers) -> tuple[str, ...]:
    """Pods end last. But while the stock or its Deployment is there, a pod may still come."""
    if stock is None:
        return ()
    itself = caches.units.store.get(ObjectKey(stock.namespace, stock.name))
    remains: list[tuple[str, KubeObject]] = [("GPUUnit", itself)] if itself and itself.metadata.uid == stock.uid else []
    remains += [("Deployment", each) for each in caches.deployments.store.owned_by(stock.uid)]
    remains += [("Pod", each) for each in caches.pods.store.by_index(PODS_BY_UNIT_UID, stock.uid)]
    return tuple(f"{kind} {each.metadata.key}" for kind, each in remains)
