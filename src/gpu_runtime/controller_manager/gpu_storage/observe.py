"""What is known of a storage and its surroundings, read from caches. Only this reads; deciders never do."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from gpu_runtime.contract.crd.gpu_storage import Attachment, GPUStorage
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.well_known import Label, Role, role_of
from gpu_runtime.controller_manager.controller_informers import Caches
from gpu_runtime.controller_manager.indexes import ATTACHED, CLAIM, STORAGE
from gpu_runtime.controller_manager.settings import ControllerManagerSettings
from gpu_runtime.controller_manager.volume_refs import claims_of_deployment, storages_of
from gpu_runtime.controller_manager.workload.unstructured import Deployment, is_current
from gpu_runtime.kube.builtin_kinds import PersistentVolumeClaim, StorageClass
from gpu_runtime.kube.meta import Key


@dataclass(frozen=True)
class Observed:
    storage: GPUStorage
    now: datetime
    claim: PersistentVolumeClaim | None = None
    storage_class: StorageClass | None = None
    holder: GPUUnit | None = None
    """The unit that the attachment names, if there is one."""
    claimants: tuple[GPUUnit, ...] = ()
    """The active units that may have the storage if nobody holds it: one whose pod mounts it already, then by age."""
    mounted_in: tuple[str, ...] = ()
    """What has the claim mounted or is about to mount it."""
    complaint: str = ""
    """What the provisioner last complained of while it made no volume."""
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
        claimants=tuple(_claimants(key, caches, settings)),
        mounted_in=tuple(_mounted_in(storage, caches)),
        pods_trouble=caches.pods.trouble,
    )


def _claimants(key: Key, caches: Caches, settings: ControllerManagerSettings) -> list[GPUUnit]:
    if role_of(key.namespace, settings.namespaces.stock) is Role.STOCK:
        return []
    already = {pod.metadata.labels.get(Label.UNIT) for pod in caches.pods.store.by(CLAIM, str(key))}

    def order(unit: GPUUnit) -> tuple[bool, str, str]:
        return unit.metadata.name not in already, unit.metadata.creation_timestamp or "", unit.metadata.name

    naming = caches.units.store.by(STORAGE, str(key))
    return sorted((unit for unit in naming if _may_have(unit, key, caches)), key=order)


def _may_have(unit: GPUUnit, storage: Key, caches: Caches) -> bool:
    """A unit takes its storages in the order of their names: two units never each hold what the other waits for."""
    if unit.metadata.deletion_timestamp is not None:
        return False
    before = [key for key in storages_of(unit) if key < storage]
    held = caches.storages.store.by(ATTACHED, str(unit.metadata.key))
    return set(before) <= {each.metadata.key for each in held}


def _mounted_in(storage: GPUStorage, caches: Caches) -> Iterator[str]:
    """Pods end last. But while the holder's Deployment wants one that mounts the claim, it may still come."""
    key, attached = storage.metadata.key, storage.spec.attached_to
    deployment = caches.deployments.store.get(Key(key.namespace, attached.unit)) if attached else None
    if deployment is not None and may_mount(deployment, key):
        yield f"Deployment {deployment.metadata.name}"
    yield from (f"Pod {pod.metadata.name}" for pod in caches.pods.store.by(CLAIM, str(key)))


def may_mount(deployment: Deployment, claim: Key) -> bool:
    """Whether pods of it mount the claim, or may still come that do: until Kubernetes has looked at what was last asked
    of it, the ReplicaSet of what was asked before makes its pods anew."""
    wanted = deployment.spec.get("replicas") != 0 and claim in claims_of_deployment(deployment)
    return wanted or not is_current(deployment)
