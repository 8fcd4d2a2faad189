"""What is known of a storage and its surroundings, read from caches. Only this reads; deciders never do."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from gpu_runtime.contract.crd.gpu_storage import Attachment, GPUStorage
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.names import Role, role_of
from gpu_runtime.controller_manager.caches import Caches
from gpu_runtime.controller_manager.gpu_storage.concerns import claims_of_deployment
from gpu_runtime.controller_manager.indexes import CLAIM, STORAGE
from gpu_runtime.controller_manager.settings import ControllerManagerSettings
from gpu_runtime.kube.core import PersistentVolumeClaim, StorageClass
from gpu_runtime.kube.objects import Key


@dataclass(frozen=True)
class Observed:
    storage: GPUStorage
    now: datetime
    claim: PersistentVolumeClaim | None = None
    storage_class: StorageClass | None = None
    holder: GPUUnit | None = None
    """The unit that the attachment names, if there is one."""
    claimants: tuple[GPUUnit, ...] = ()
    """The active units that name the storage among their mounts, the oldest first."""
    mounted_in: tuple[str, ...] = ()
    """What has the claim mounted or is about to mount it."""
    pods_trouble: str = ""
    """Why the cache of pods may be out of date, if it may."""

    @property
    def attached(self) -> Attachment | None:
        return self.storage.spec.attached_to


def observe(storage: GPUStorage, caches: Caches, settings: ControllerManagerSettings, now: datetime) -> Observed:
    key, attached = storage.metadata.key, storage.spec.attached_to
    holder = caches.units.store.get(Key(key.namespace, attached.unit)) if attached else None
    return Observed(
        storage=storage,
        now=now,
        claim=caches.claims.store.get(key),
        storage_class=caches.storage_classes.store.get(Key("", storage.spec.storage_class_name)),
        holder=holder,
        claimants=_claimants(key, caches, settings),
        mounted_in=tuple(_mounted_in(storage, caches)),
        pods_trouble=caches.pods.trouble,
    )


def _claimants(key: Key, caches: Caches, settings: ControllerManagerSettings) -> tuple[GPUUnit, ...]:
    naming = [
        unit
        for unit in caches.units.store.by(STORAGE, str(key))
        if unit.metadata.deletion_timestamp is None
        and role_of(unit.metadata.namespace, settings.namespaces.stock) is Role.ACTIVE
    ]
    return tuple(sorted(naming, key=lambda unit: (unit.metadata.creation_timestamp or "", unit.metadata.name)))


def _mounted_in(storage: GPUStorage, caches: Caches) -> Iterator[str]:
    """Pods end last. But while the holder's Deployment wants one that mounts the claim, it may still come."""
    key, attached = storage.metadata.key, storage.spec.attached_to
    deployment = caches.deployments.store.get(Key(key.namespace, attached.unit)) if attached else None
    wants_pods = deployment is not None and deployment.spec.get("replicas") != 0
    if deployment is not None and wants_pods and key in claims_of_deployment(deployment):
        yield f"Deployment {deployment.metadata.name}"
    yield from (f"Pod {pod.metadata.name}" for pod in caches.pods.store.by(CLAIM, str(key)))
