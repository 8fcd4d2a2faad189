"""Which units a change elsewhere concerns. Pure look-ups in the cache of units."""

from collections.abc import Iterable

from gpu_runtime.contract.crd.gpu_storage import GPUStorage
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.well_known import Label
from gpu_runtime.controller_manager.indexes import SOURCE_STOCK, STORAGE
from gpu_runtime.controller_manager.volume_refs import claims_of_pod
from gpu_runtime.controller_manager.workload.unstructured import Deployment
from gpu_runtime.kube.builtin_kinds import Pod
from gpu_runtime.kube.meta import Key
from gpu_runtime.kube.store import Store


class Concerns:
    def __init__(self, units: Store[GPUUnit]) -> None:
        self._units = units

    def of_pod(self, pod: Pod) -> Iterable[Key]:
        """Its own unit, and those that wait for the pod's end: for its GPUs or for a storage that it mounts."""
        labels = pod.metadata.labels
        if name := labels.get(Label.UNIT):
            yield Key(pod.metadata.namespace, name)
        yield from self._made_from(labels.get(Label.UNIT_UID, ""))
        for claim in claims_of_pod(pod):
            yield from self._mounting(claim)

    def of_deployment(self, deployment: Deployment) -> Iterable[Key]:
        owner = deployment.metadata.controller
        return self._made_from(owner.uid) if owner else ()

    def of_unit(self, unit: GPUUnit) -> Iterable[Key]:
        return self._made_from(unit.metadata.uid)

    def of_storage(self, storage: GPUStorage) -> Iterable[Key]:
        return self._mounting(storage.metadata.key)

    def _mounting(self, storage: Key) -> Iterable[Key]:
        return [unit.metadata.key for unit in self._units.by(STORAGE, str(storage))]

    def _made_from(self, stock_uid: str) -> Iterable[Key]:
        return [unit.metadata.key for unit in self._units.by(SOURCE_STOCK, stock_uid)]
