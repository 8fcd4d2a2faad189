"""The claim of a storage: where its data is. It has no owner reference, since garbage collection must never eat it.

Of a claim that exists, Kubernetes lets only the metadata change and the size grow: what is written over it is a patch.
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


def is_pvc_of(found: PersistentVolumeClaim, storage: GPUStorage) -> bool:
    """By its label, also after a restore in which the storage got another UID; or by the UID, if the label was lost."""
    labels, annotations = found.metadata.labels, found.metadata.annotations
    by_label = labels.get(Label.STORAGE) == storage.metadata.name
    return by_label or annotations.get(Annotation.STORAGE_UID) == storage.metadata.uid


def metadata_patch(found: PersistentVolumeClaim, storage: GPUStorage) -> Manifest | None:
    """What must be changed about the claim's metadata, if anything."""
    wanted, metadata = pvc_manifest(storage)["metadata"], found.metadata
    change = {
        "labels": _differing(wanted["labels"], metadata.labels),
        "annotations": _differing(wanted["annotations"], metadata.annotations),
        "ownerReferences": None if metadata.owner_references else {},
    }
    needed = {part: value for part, value in change.items() if value != {}}
    return {"metadata": needed} if needed else None


def expansion_patch(found: PersistentVolumeClaim, storage: GPUStorage) -> Manifest | None:
    """What must be changed for the volume to grow, if it is to. A claim that asks for more than is wanted stays."""
    if requested_size(found) >= Quantity(storage.spec.size):
        return None
    return {"spec": {"resources": {"requests": {"storage": storage.spec.size}}}}


def requested_size(found: PersistentVolumeClaim) -> Quantity:
    return Quantity(found.spec.resources.requests.get("storage", "0"))


def _differing(wanted: Mapping[str, str], actual: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in wanted.items() if actual.get(name) != value}
