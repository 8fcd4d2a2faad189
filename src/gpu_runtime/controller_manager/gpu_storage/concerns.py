"""Which storages a change elsewhere concerns. Pure look-ups in the cache of storages."""

from collections.abc import Iterable

from gpu_runtime.contract.crd.gpu_storage import GPUStorage
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.controller_manager.indexes import ATTACHED, STORAGE_CLASS
from gpu_runtime.controller_manager.workload.owned import Deployment
from gpu_runtime.kube.core import PersistentVolumeClaim, Pod, StorageClass
from gpu_runtime.kube.objects import Key
from gpu_runtime.kube.store import Store


class Concerns:
    def __init__(self, storages: Store[GPUStorage]) -> None:
        self._storages = storages

    def of_claim(self, claim: PersistentVolumeClaim) -> Iterable[Key]:
        return (claim.metadata.key,)

    def of_unit(self, unit: GPUUnit) -> Iterable[Key]:
        """Those that it mounts, and those that are held for it whether it mounts them or not."""
        namespace = unit.metadata.namespace
        yield from (Key(namespace, mount.name) for mount in unit.spec.storage_mounts)
        yield from self._held_for(unit.metadata.key)

    def of_pod(self, pod: Pod) -> Iterable[Key]:
        claims = (each.persistent_volume_claim for each in pod.spec.volumes)
        return [Key(pod.metadata.namespace, claim.claim_name) for claim in claims if claim]

    def of_deployment(self, deployment: Deployment) -> Iterable[Key]:
        return self._held_for(deployment.metadata.key)

    def of_class(self, found: StorageClass) -> Iterable[Key]:
        return _keys(self._storages.by(STORAGE_CLASS, found.metadata.name))

    def _held_for(self, unit: Key) -> Iterable[Key]:
        return _keys(self._storages.by(ATTACHED, str(unit)))


def claims_of_deployment(deployment: Deployment) -> set[Key]:
    """The claims that its pods mount."""
    volumes = deployment.spec.get("template", {}).get("spec", {}).get("volumes") or ()
    sources = (each.get("persistentVolumeClaim") for each in volumes)
    return {Key(deployment.metadata.namespace, source["claimName"]) for source in sources if source}


def _keys(storages: Iterable[GPUStorage]) -> list[Key]:
    return [storage.metadata.key for storage in storages]
