"""Drift detection for children. No I/O.

The functions check who owns an object and whether it matches the desired manifest. They also build its update.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from gpu_runtime.contract.crd.well_known import GROUP, Label
from gpu_runtime.controller_manager.unstructured import RawObject
from gpu_runtime.kube.meta import ApiResource, KubeObject, Manifest
from gpu_runtime.kube.quantity import same_quantity

DESIRED_HASH_ANNOTATION = f"{GROUP}/desired-hash"
"""Annotation of every child with the hash of its desired spec.

The hash also changes when a field is removed from the desired spec. A comparison of the desired fields alone would not
detect the removal.
"""

IDENTITY_LABELS = (Label.MANAGED_BY, Label.UNIT, Label.POOL)
"""Labels that identify the owner of an object whose owner reference was removed."""

QUANTITY_FIELDS = ("limits", "requests")
EXACT_MATCH_FIELDS = (*QUANTITY_FIELDS, "selector", "podSelector", "matchLabels", "affinity", "emptyDir")
"""Maps that must be equal, because an additional entry would change their meaning. In other maps, it is ignored."""


def child_manifest(
    owner: KubeObject, resource: ApiResource[Any], name: str, labels: Mapping[str, str], spec: Manifest
) -> Manifest:
    """Return the manifest of a child with labels, owner reference and hash. `resource` describes the owner's kind."""
    metadata = owner.metadata
    spec_hash = hashlib.sha256(msgspec.json.encode(spec, order="sorted")).hexdigest()[:16]
    reference = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": metadata.name,
        "uid": metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "metadata": {
            "namespace": metadata.namespace,
            "name": name,
            "labels": dict(labels),
            "annotations": {DESIRED_HASH_ANNOTATION: spec_hash},
            "ownerReferences": [reference],
        },
        "spec": spec,
    }


def is_owned(live: KubeObject, owner: KubeObject) -> bool:
    reference = live.metadata.controller_ref
    return reference is not None and reference.uid == owner.metadata.uid


def is_orphan(live: KubeObject, desired: Manifest) -> bool:
    """Return whether the object has the identity labels of the child but no controller owner reference."""
    labels: Mapping[str, str] = desired["metadata"]["labels"]
    identity = {name: labels[name] for name in IDENTITY_LABELS if name in labels}
    return live.metadata.controller_ref is None and identity.items() <= live.metadata.labels.items()


def matches_desired(live: RawObject, desired: Manifest) -> bool:
    """Return whether the live object equals the desired manifest in every field that the manifest sets."""
    metadata, desired_metadata = live.metadata, desired["metadata"]
    return (
        _is_subset(desired_metadata["labels"], metadata.labels)
        and _is_subset(desired_metadata["annotations"], metadata.annotations)
        and all(reference in _owner_references(live) for reference in desired_metadata["ownerReferences"])
        and _is_subset(desired["spec"], live.spec)
    )


def update_manifest(live: RawObject, desired: Manifest) -> Manifest:
    """Return the manifest that replaces the live object.

    The manifest has the complete desired spec. Its metadata also contains the labels, annotations, owner references and
    finalizers that other clients added to the live object.
    """
    metadata, desired_metadata = live.metadata, desired["metadata"]
    own_uids = {reference["uid"] for reference in desired_metadata["ownerReferences"]}
    return {
        "metadata": {
            **desired_metadata,
            "resourceVersion": metadata.resource_version,
            "labels": {**metadata.labels, **desired_metadata["labels"]},
            "annotations": {**metadata.annotations, **desired_metadata["annotations"]},
            "ownerReferences": [
                *(each for each in _owner_references(live) if each["uid"] not in own_uids),
                *desired_metadata["ownerReferences"],
            ],
            "finalizers": list(metadata.finalizers),
        },
        "spec": desired["spec"],
    }


def _owner_references(live: RawObject) -> list[Manifest]:
    return [msgspec.to_builtins(reference) for reference in live.metadata.owner_references]


def _is_subset(desired: Any, actual: Any, key: str = "") -> bool:
    """Return whether the actual value has all desired fields. Lists must have the same length. 1024Mi equals 1Gi."""
    match desired:
        case dict() | list() if desired == actual:  # fast path: most parts are equal
            return True
        case dict():
            return (
                isinstance(actual, dict)
                and (key not in EXACT_MATCH_FIELDS or actual.keys() <= desired.keys())
                and all(_field_matches(actual, name, value, key) for name, value in desired.items())
            )
        case list():
            return (
                isinstance(actual, list)
                and len(desired) == len(actual)
                and all(_is_subset(one, other) for one, other in zip(desired, actual, strict=True))
            )
        case str() if key in QUANTITY_FIELDS and isinstance(actual, str):
            return same_quantity(desired, actual)
        case _:
            return type(desired) is type(actual) and bool(desired == actual)


def _field_matches(actual: Manifest, name: str, value: Any, key: str) -> bool:
    if name not in actual:
        # The API server omits empty values, and `readOnly: false`, which is the default.
        return value in (None, "", [], {}) or (name == "readOnly" and value is False)
    return _is_subset(value, actual[name], key if key in QUANTITY_FIELDS else name)
