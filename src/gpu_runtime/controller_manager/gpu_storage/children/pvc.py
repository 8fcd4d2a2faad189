"""Builds the PersistentVolumeClaim (PVC) of a storage, and the patches for an existing PVC. No I/O.

The PVC has no owner reference, because the garbage collector must never delete the data. Kubernetes allows only two
changes of an existing PVC: new metadata and a larger size. Therefore the controller patches an existing PVC and does
not replace it.
"""

from collections.abc import Mapping

from gpu_runtime.contract.crd.gpu_storage import GPUStorage
from gpu_runtime.contract.crd.well_known import Annotation, Label, storage_labels
from gpu_runtime.kube.builtin_kinds import PersistentVolumeClaim
from gpu_runtime.kube.meta import Manifest
from gpu_runtime.kube.quantity import Quantity

ACCESS_MODE = "ReadWriteOnce"


def pvc_manifest(storage: GPUStorage) -> Manifest:
    metadata, spec = storage.metadata, storage.spec
    return {
        "metadata": {
            "namespace": metadata.namespace,
            "name": metadata.name,
            "labels": storage_labels(metadata.name),
            "annotations": {Annotation.STORAGE_UID: metadata.uid},
        },
        "spec": {
            "accessModes": [ACCESS_MODE],
            "storageClassName": spec.storage_class_name,
            "resources": {"requests": {"storage": spec.size}},
        },
    }


def is_pvc_of(live: PersistentVolumeClaim, storage: GPUStorage) -> bool:
    """Return whether the PVC belongs to the storage.

    The label or the annotation is sufficient. After a restore from a backup, the storage has another UID, so only the
    label matches. If another client removed the label, only the UID in the annotation matches.
    """
    labels, annotations = live.metadata.labels, live.metadata.annotations
    by_label = labels.get(Label.STORAGE) == storage.metadata.name
    return by_label or annotations.get(Annotation.STORAGE_UID) == storage.metadata.uid


def metadata_patch(live: PersistentVolumeClaim, storage: GPUStorage) -> Manifest | None:
    """Return the patch that corrects the metadata of the PVC, or None if the metadata is correct."""
    desired, actual = pvc_manifest(storage)["metadata"], live.metadata
    change = {
        "labels": _differing(desired["labels"], actual.labels),
        "annotations": _differing(desired["annotations"], actual.annotations),
        "ownerReferences": None if actual.owner_references else {},
    }
    differences = {part: value for part, value in change.items() if value != {}}
    return {"metadata": differences} if differences else None


def expansion_patch(live: PersistentVolumeClaim, storage: GPUStorage) -> Manifest | None:
    """Return the patch that requests a larger volume, or None if the PVC already requests at least spec.size."""
    if requested_size(live) >= Quantity(storage.spec.size):
        return None
    return {"spec": {"resources": {"requests": {"storage": storage.spec.size}}}}


def requested_size(live: PersistentVolumeClaim) -> Quantity:
    return Quantity(live.spec.resources.requests.get("storage", "0"))


def _differing(desired: Mapping[str, str], actual: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in desired.items() if actual.get(name) != value}
