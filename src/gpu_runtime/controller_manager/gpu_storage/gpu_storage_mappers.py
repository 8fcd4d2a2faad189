"""Event mappers of the GPUStorage controller. A mapper returns the storages to reconcile when another object changes.

The mappers read only from the informer stores of storages and units.
"""

from collections.abc import Iterable

from gpu_runtime.contract.crd.gpu_storage import GPUStorage
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.controller_manager.indexes import STORAGES_BY_CLASS, STORAGES_BY_UNIT
from gpu_runtime.controller_manager.unstructured import RawDeployment
from gpu_runtime.controller_manager.volume_refs import pod_pvc_keys, unit_storage_keys
from gpu_runtime.kube.builtin_kinds import PersistentVolumeClaim, Pod, StorageClass
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.kube.store import Store


class GPUStorageMappers:
    def __init__(self, storages: Store[GPUStorage], units: Store[GPUUnit]) -> None:
        self._storages = storages
        self._units = units

    def map_storage(self, storage: GPUStorage) -> Iterable[ObjectKey]:
        """Return the storages that can be attached to the same unit next. The order of attachment is by name."""
        attachment = storage.spec.attached_to
        unit = self._units.get(ObjectKey(storage.metadata.namespace, attachment.unit)) if attachment else None
        return [key for key in unit_storage_keys(unit) if key > storage.metadata.key] if unit else ()

    def map_pvc(self, pvc: PersistentVolumeClaim) -> Iterable[ObjectKey]:
        return (pvc.metadata.key,)

    def map_unit(self, unit: GPUUnit) -> Iterable[ObjectKey]:
        """Return the storages that the unit mounts, and all storages that are attached to it."""
        yield from unit_storage_keys(unit)
        yield from self._storages_attached_to(unit.metadata.key)

    def map_pod(self, pod: Pod) -> Iterable[ObjectKey]:
        return pod_pvc_keys(pod)

    def map_deployment(self, deployment: RawDeployment) -> Iterable[ObjectKey]:
        return self._storages_attached_to(deployment.metadata.key)

    def map_storage_class(self, storage_class: StorageClass) -> Iterable[ObjectKey]:
        return _keys(self._storages.by_index(STORAGES_BY_CLASS, storage_class.metadata.name))

    def _storages_attached_to(self, unit: ObjectKey) -> Iterable[ObjectKey]:
        return _keys(self._storages.by_index(STORAGES_BY_UNIT, str(unit)))


def _keys(storages: Iterable[GPUStorage]) -> list[ObjectKey]:
    return [storage.metadata.key for storage in storages]
