"""What is known of a unit and its surroundings, read from caches. Only this reads; deciders never do."""

from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from gpu_runtime.contract.crd.gpu_storage import GPUStorage
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.well_known import Role, role_of
from gpu_runtime.controller_manager.controller_informers import Caches
from gpu_runtime.controller_manager.gpu_unit.source_stock import SourceStock, source_stock
from gpu_runtime.controller_manager.indexes import CLAIM, UNIT_UID
from gpu_runtime.controller_manager.settings import ControllerManagerSettings
from gpu_runtime.controller_manager.volume_refs import storages_of
from gpu_runtime.controller_manager.workload.unstructured import Deployment, NetworkPolicy, Service
from gpu_runtime.kube.builtin_kinds import Pod
from gpu_runtime.kube.meta import Key, Object


@dataclass(frozen=True)
class Observed:
    unit: GPUUnit
    settings: ControllerManagerSettings
    deployment: Deployment | None = None
    service: Service | None = None
    network_policy: NetworkPolicy | None = None
    pods: tuple[Pod, ...] = ()
    pods_trouble: str = ""
    """Why the cache of pods may be out of date, if it may."""
    storages: MappingProxyType[str, GPUStorage] = field(default_factory=lambda: MappingProxyType({}))
    mounting: MappingProxyType[str, tuple[Pod, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """The pods that mount each of the storages, whoever's they are."""
    stock_remains: tuple[str, ...] = ()
    """What is left of the stock that the unit was made from, and may still hold its GPUs."""

    @property
    def role(self) -> Role:
        return role_of(self.unit.metadata.namespace, self.settings.namespaces.stock)

    @cached_property
    def source_stock(self) -> SourceStock | None:
        return source_stock(self.unit)


def observe(unit: GPUUnit, caches: Caches, settings: ControllerManagerSettings) -> Observed:
    key, uid = unit.metadata.key, unit.metadata.uid
    return Observed(
        unit=unit,
        settings=settings,
        deployment=caches.deployments.store.get(key),
        service=caches.services.store.get(key),
        network_policy=caches.network_policies.store.get(key),
        pods=tuple(caches.pods.store.by(UNIT_UID, uid)),
        pods_trouble=caches.pods.trouble,
        storages=MappingProxyType(_storages(unit, caches)),
        mounting=MappingProxyType(
            {each.name: tuple(caches.pods.store.by(CLAIM, str(each))) for each in storages_of(unit)}
        ),
        stock_remains=_remains(source_stock(unit), caches),
    )


def _storages(unit: GPUUnit, caches: Caches) -> dict[str, GPUStorage]:
    found = {key.name: caches.storages.store.get(key) for key in storages_of(unit)}
    return {name: storage for name, storage in found.items() if storage is not None}


def _remains(stock: SourceStock | None, caches: Caches) -> tuple[str, ...]:
    """Pods end last. But while the stock or its Deployment is there, a pod may still come."""
    if stock is None:
        return ()
    itself = caches.units.store.get(Key(stock.namespace, stock.name))
    remains: list[tuple[str, Object]] = [("GPUUnit", itself)] if itself and itself.metadata.uid == stock.uid else []
    remains += [("Deployment", each) for each in caches.deployments.store.owned_by(stock.uid)]
    remains += [("Pod", each) for each in caches.pods.store.by(UNIT_UID, stock.uid)]
    return tuple(f"{kind} {each.metadata.key}" for kind, each in remains)
