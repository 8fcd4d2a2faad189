"""Which storages a change elsewhere concerns. Pure look-ups in the cache of storages."""

from collections.abc import Iterable

from gpu_runtime.contract.crd.gpu_storage import GPUStorage
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.controller_manager.indexes import ATTACHED, STORAGE_CLASS
from gpu_runtime.controller_manager.volume_refs import claims_of_pod, storages_of
from gpu_runtime.controller_manager.workload.unstructured import Deployment
from gpu_runtime.kube.builtin_kinds import PersistentVolumeClaim, Pod, StorageClass
from gpu_runtime.kube.meta import Key
from gpu_runtime.kube.store import Store


class Concerns:
    def __init__(self, storages: Store[GPUStorage], units: Store[GPUUnit]) -> None:
        self._storages = storages
        self._units = units

    def of_storage(self, storage: GPUStorage) -> Iterable[Key]:
        """The others of the unit that holds it: a unit takes its storages one after the other."""
        attached = storage.spec.attached_to
        unit = self._units.get(Key(storage.metadata.namespace, attached.unit)) if attached else None
        return [key for key in storages_of(unit) if key > storage.metadata.key] if unit else ()

    def of_claim(self, claim: PersistentVolumeClaim) -> Iterable[Key]:
        return (claim.metadata.key,)

    def of_unit(self, unit: GPUUnit) -> Iterable[Key]:
        """Those that it mounts, and those that are held for it whether it mounts them or not."""
        yield from storages_of(unit)
        yield from self._held_for(unit.metadata.key)

    def of_pod(self, pod: Pod) -> Iterable[Key]:
        return claims_of_pod(pod)

    def of_deployment(self, deployment: Deployment) -> Iterable[Key]:
        return self._held_for(deployment.metadata.key)

    def of_class(self, found: StorageClass) -> Iterable[Key]:
        return _keys(self._storages.by(STORAGE_CLASS, found.metadata.name))

    def _held_for(self, unit: Key) -> Iterable[Key]:
        return _keys(self._storages.by(ATTACHED, str(unit)))


def _keys(storages: Iterable[GPUStorage]) -> list[Key]:
    return [storage.metadata.key for storage in storages]
