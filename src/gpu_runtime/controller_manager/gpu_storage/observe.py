"""What is known of a storage and its surroundings, read from caches. Only this reads; deciders never do."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from gpu_runtime.contract.crd.gpu_storage import Attachment, GPUStorage
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.well_known import Label, UnitRole, role_of
from gpu_runtime.controller_manager.controller_informers import ControllerInformers
from gpu_runtime.controller_manager.indexes import PODS_BY_PVC, STORAGES_BY_UNIT, UNITS_BY_STORAGE
from gpu_runtime.controller_manager.settings import ControllerManagerSettings
from gpu_runtime.controller_manager.volume_refs import deployment_pvc_keys, unit_storage_keys
from gpu_runtime.controller_manager.workload.unstructured import RawDeployment, is_generation_observed
from gpu_runtime.kube.builtin_kinds import PersistentVolumeClaim, StorageClass
from gpu_runtime.kube.meta import ObjectKey


@dataclass(frozen=True)
class ObservedStorage:
    storage: GPUStorage
    now: datetime
    pvc: PersistentVolumeClaim | None = None
    storage_class: StorageClass | None = None
    attached_unit: GPUUnit | None = None
    """The unit that the attachment names, if there is one."""
    attach_candidates: tuple[GPUUnit, ...] = ()
    """The active units that may have the storage if nobody holds it: one whose pod mounts it already, then by age."""
    mounted_by: tuple[str, ...] = ()
    """What has the claim mounted or is about to mount it."""
    provisioner_warning: str = ""
    """What the provisioner last complained of while it made no volume."""
    pod_cache_error: str = ""
    """Why the cache of pods may be out of date, if it may."""

    @property
    def attachment(self) -> Attachment | None:
        return self.storage.spec.attached_to


def observe(
    storage: GPUStorage, caches: ControllerInformers, settings: ControllerManagerSettings, now: datetime
) -> ObservedStorage:
    key, attached = storage.metadata.key, storage.spec.attached_to
    holder = caches.units.store.get(ObjectKey(key.namespace, attached.unit)) if attached else None
    return ObservedStorage(
        storage=storage,
        now=now,
        pvc=caches.pvcs.store.get(key),
        storage_class=caches.storage_classes.store.get(ObjectKey("", storage.spec.storage_class_name)),
        attached_unit=holder,
        attach_candidates=tuple(_attach_candidates(key, caches, settings)),
        mounted_by=tuple(_mounted_by(storage, caches)),
        pod_cache_error=caches.pods.last_error,
    )


def _attach_candidates(
    key: ObjectKey, caches: ControllerInformers, settings: ControllerManagerSettings
) -> list[GPUUnit]:
    if role_of(key.namespace, settings.namespaces.stock) is UnitRole.STOCK:
        return []
    already = {pod.metadata.labels.get(Label.UNIT) for pod in caches.pods.store.by_index(PODS_BY_PVC, str(key))}

    def order(unit: GPUUnit) -> tuple[bool, str, str]:
        return unit.metadata.name not in already, unit.metadata.creation_timestamp or "", unit.metadata.name

    naming = caches.units.store.by_index(UNITS_BY_STORAGE, str(key))
    return sorted((unit for unit in naming if _may_attach(unit, key, caches)), key=order)


def _may_attach(unit: GPUUnit, storage: ObjectKey, caches: ControllerInformers) -> bool:
    """A unit takes its storages in the order of their names: two units never each hold what the other waits for."""
    if unit.metadata.deletion_timestamp is not None:
        return False
    before = [key for key in unit_storage_keys(unit) if key < storage]
    held = caches.storages.store.by_index(STORAGES_BY_UNIT, str(unit.metadata.key))
    return set(before) <= {each.metadata.key for each in held}


def _mounted_by(storage: GPUStorage, caches: ControllerInformers) -> Iterator[str]:
    """Pods end last. But while the holder's Deployment wants one that mounts the claim, it may still come."""
    key, attached = storage.metadata.key, storage.spec.attached_to
    deployment = caches.deployments.store.get(ObjectKey(key.namespace, attached.unit)) if attached else None
    if deployment is not None and may_mount(deployment, key):
        yield f"Deployment {deployment.metadata.name}"
    yield from (f"Pod {pod.metadata.name}" for pod in caches.pods.store.by_index(PODS_BY_PVC, str(key)))


def may_mount(deployment: RawDeployment, claim: ObjectKey) -> bool:
    """Whether pods of it mount the claim, or may still come that do: until Kubernetes has looked at what was last asked
    of it, the ReplicaSet of what was asked before makes its pods anew."""
    wanted = deployment.spec.get("replicas") != 0 and claim in deployment_pvc_keys(deployment)
    return wanted or not is_generation_observed(deployment)
