"""Event mappers of the GPUUnit controller. A mapper returns the units to reconcile when another object changes.

The mappers read only from the informer store of units.
"""

from collections.abc import Iterable

from gpu_runtime.contract.crd.function_queue import FunctionQueue
from gpu_runtime.contract.crd.gpu_storage import GPUStorage
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.well_known import Label
from gpu_runtime.controller_manager.indexes import FUNCTIONS_BY_REQUEST_ID, UNITS_BY_SOURCE_STOCK, UNITS_BY_STORAGE
from gpu_runtime.controller_manager.unstructured import RawDeployment
from gpu_runtime.controller_manager.volume_refs import pod_pvc_keys
from gpu_runtime.kube.builtin_kinds import Pod
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.kube.store import Store


class GPUUnitMappers:
    def __init__(self, units: Store[GPUUnit]) -> None:
        self._units = units

    def map_pod(self, pod: Pod) -> Iterable[ObjectKey]:
        """Return the unit of the pod, and the units that wait for the deletion of the pod.

        A unit waits for the deletion if the pod uses the GPUs of its stock unit or mounts one of its storages.
        """
        labels = pod.metadata.labels
        if name := labels.get(Label.UNIT):
            yield ObjectKey(pod.metadata.namespace, name)
        yield from self._units_from_stock(labels.get(Label.UNIT_UID, ""))
        for pvc in pod_pvc_keys(pod):
            yield from self._units_mounting(pvc)

    def map_deployment(self, deployment: RawDeployment) -> Iterable[ObjectKey]:
        """Return the units that wait until the Deployment of their stock unit is deleted."""
        owner = deployment.metadata.controller_ref
        return self._units_from_stock(owner.uid) if owner else ()

    def map_unit(self, unit: GPUUnit) -> Iterable[ObjectKey]:
        """Return the units that wait until this stock unit is deleted."""
        return self._units_from_stock(unit.metadata.uid)

    def map_queue(self, queue: FunctionQueue) -> Iterable[ObjectKey]:
        """Return the units that may read the queue, and the other functions that want its requestID."""
        spec = queue.spec
        yield spec.function.key
        yield from (ObjectKey(spec.function.namespace, name) for name in spec.workers.values())
        for unit in self._units.by_index(FUNCTIONS_BY_REQUEST_ID, spec.request_id):
            yield unit.metadata.key

    def map_storage(self, storage: GPUStorage) -> Iterable[ObjectKey]:
        return self._units_mounting(storage.metadata.key)

    def _units_mounting(self, storage: ObjectKey) -> Iterable[ObjectKey]:
        return [unit.metadata.key for unit in self._units.by_index(UNITS_BY_STORAGE, str(storage))]

    def _units_from_stock(self, stock_uid: str) -> Iterable[ObjectKey]:
        return [unit.metadata.key for unit in self._units.by_index(UNITS_BY_SOURCE_STOCK, stock_uid)]
