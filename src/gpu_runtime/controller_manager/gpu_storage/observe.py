"""Reads all objects that the GPUStorage controller needs: the storage, its PVC, units, pods and StorageClass.

Only this module reads from the informer stores. The rules and status functions receive an `ObservedStorage`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from gpu_runtime.contract.crd.gpu_storage import Attachment, GPUStorage
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.well_known import Label, UnitRole, role_of
from gpu_runtime.controller_manager.controller_informers import ControllerInformers
from gpu_runtime.controller_manager.indexes import PODS_BY_PVC, STORAGES_BY_UNIT, UNITS_BY_STORAGE
from gpu_runtime.controller_manager.settings import ControllerManagerSettings
from gpu_runtime.controller_manager.unstructured import RawDeployment, is_generation_observed
from gpu_runtime.controller_manager.volume_refs import deployment_pvc_keys, unit_storage_keys
from gpu_runtime.kube.builtin_kinds import PersistentVolumeClaim, StorageClass
from gpu_runtime.kube.meta import ObjectKey


@dataclass(frozen=True)
class ObservedStorage:
    storage: GPUStorage
    now: datetime
    pvc: PersistentVolumeClaim | None = None
    storage_class: StorageClass | None = None
    attached_unit: GPUUnit | None = None
    """The unit to which the storage is attached. None if the unit does not exist."""
    attach_candidates: tuple[GPUUnit, ...] = ()
    """Active units to which a free storage may be attached. Units whose pod mounts it come first, then older units."""
    mounted_by: tuple[str, ...] = ()
    """Pods that mount the PVC, and the Deployment that may create such a pod, in the form `kind name`."""
    provisioner_warning: str = ""
    """Text of the last warning Event about a PVC without a volume. The provisioner normally records this Event."""
    pod_cache_error: str = ""
    """Why the pod cache may be stale. Empty if the watch of pods works."""

    @property
    def attachment(self) -> Attachment | None:
        return self.storage.spec.attached_to


def observe(
    storage: GPUStorage, informers: ControllerInformers, settings: ControllerManagerSettings, now: datetime
) -> ObservedStorage:
    key, attachment = storage.metadata.key, storage.spec.attached_to
    attached_unit = informers.units.store.get(ObjectKey(key.namespace, attachment.unit)) if attachment else None
    return ObservedStorage(
        storage=storage,
        now=now,
        pvc=informers.pvcs.store.get(key),
        storage_class=informers.storage_classes.store.get(ObjectKey("", storage.spec.storage_class_name)),
        attached_unit=attached_unit,
        attach_candidates=tuple(_attach_candidates(key, informers, settings)),
        mounted_by=tuple(_mounted_by(storage, informers)),
        pod_cache_error=informers.pods.last_error,
    )


def _attach_candidates(
    key: ObjectKey, informers: ControllerInformers, settings: ControllerManagerSettings
) -> list[GPUUnit]:
    if role_of(key.namespace, settings.namespaces.stock) is UnitRole.STOCK:
        return []
    mounting = {pod.metadata.labels.get(Label.UNIT) for pod in informers.pods.store.by_index(PODS_BY_PVC, str(key))}

    def order(unit: GPUUnit) -> tuple[bool, str, str]:
        return unit.metadata.name not in mounting, unit.metadata.creation_timestamp or "", unit.metadata.name

    units = informers.units.store.by_index(UNITS_BY_STORAGE, str(key))
    return sorted((unit for unit in units if _may_attach(unit, key, informers)), key=order)


def _may_attach(unit: GPUUnit, storage: ObjectKey, informers: ControllerInformers) -> bool:
    """Return whether the storage may be attached to the unit.

    False if the unit is being deleted, or if a storage of the unit with an earlier name is not attached to it yet. The
    fixed order prevents a deadlock in which each of two units waits for a storage that is attached to the other unit.
    """
    if unit.metadata.deletion_timestamp is not None:
        return False
    earlier = {key for key in unit_storage_keys(unit) if key < storage}
    attached = informers.storages.store.by_index(STORAGES_BY_UNIT, str(unit.metadata.key))
    return earlier <= {each.metadata.key for each in attached}


def _mounted_by(storage: GPUStorage, informers: ControllerInformers) -> Iterator[str]:
    """List the pods that mount the PVC, and the Deployment of the attached unit if it may create such a pod.

    The Deployment counts too: as long as it requests a pod with this PVC, Kubernetes may create the pod.
    """
    key, attachment = storage.metadata.key, storage.spec.attached_to
    deployment = informers.deployments.store.get(ObjectKey(key.namespace, attachment.unit)) if attachment else None
    if deployment is not None and may_mount(deployment, key):
        yield f"Deployment {deployment.metadata.name}"
    yield from (f"Pod {pod.metadata.name}" for pod in informers.pods.store.by_index(PODS_BY_PVC, str(key)))


def may_mount(deployment: RawDeployment, pvc: ObjectKey) -> bool:
    """Return whether the Deployment has, or may still create, a pod that mounts the PVC.

    Until the Deployment controller has observed the latest generation, the ReplicaSet of the previous generation
    replaces deleted pods, and the new pods may mount the PVC.
    """
    requested = deployment.spec.get("replicas") != 0 and pvc in deployment_pvc_keys(deployment)
    return requested or not is_generation_observed(deployment)
