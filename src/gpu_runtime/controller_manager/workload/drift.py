"""An object that belongs to a unit or a pool: whose it is, what it should be, and whether it is that. Pure."""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from gpu_runtime.contract.crd.well_known import GROUP, Label
from gpu_runtime.controller_manager.workload.unstructured import RawObject
from gpu_runtime.kube.meta import ApiResource, KubeObject, Manifest
from gpu_runtime.kube.quantity import same_quantity

DESIRED_HASH_ANNOTATION = f"{GROUP}/desired-hash"
"""On every child: the digest of what it was last made to be. It changes when a field is no longer wanted, which a
comparison of the wanted fields alone would miss."""

IDENTITY_LABELS = (Label.MANAGED_BY, Label.UNIT, Label.POOL)
"""The labels that tell whose an object is when its owner reference was taken away."""

QUANTITY_FIELDS = ("limits", "requests")
EXACT_MATCH_FIELDS = (*QUANTITY_FIELDS, "selector", "podSelector", "matchLabels", "affinity", "emptyDir")
"""Of these, one entry more than is wanted means something else."""


def child_manifest(
    owner: KubeObject, resource: ApiResource[Any], name: str, labels: Mapping[str, str], spec: Manifest
) -> Manifest:
    """The manifest of an owned object. `resource` is the owner's kind."""
    metadata = owner.metadata
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
            "annotations": {DESIRED_HASH_ANNOTATION: spec_hash(spec)},
            "ownerReferences": [reference],
        },
        "spec": spec,
    }


def spec_hash(spec: Manifest) -> str:
    return hashlib.sha256(msgspec.json.encode(spec, order="sorted")).hexdigest()[:16]


def is_owned(found: KubeObject, owner: KubeObject) -> bool:
    reference = found.metadata.controller_ref
    return reference is not None and reference.uid == owner.metadata.uid


def is_orphan(found: KubeObject, wanted: Manifest) -> bool:
    """Whether an object is what its labels say, and only the reference to its owner was taken away."""
    labels: Mapping[str, str] = wanted["metadata"]["labels"]
    identity = {name: labels[name] for name in IDENTITY_LABELS if name in labels}
    return found.metadata.controller_ref is None and identity.items() <= found.metadata.labels.items()


def matches_desired(found: RawObject, wanted: Manifest) -> bool:
    """Whether an object is what it should be, in every field that is wanted of it."""
    metadata, desired = found.metadata, wanted["metadata"]
    return (
        _is_subset(desired["labels"], metadata.labels)
        and _is_subset(desired["annotations"], metadata.annotations)
        and all(reference in _owner_references(found) for reference in desired["ownerReferences"])
        and _is_subset(wanted["spec"], found.spec)
    )


def update_manifest(found: RawObject, wanted: Manifest) -> Manifest:
    """What to write over an object: the wanted spec whole, and of its metadata what others have put there, too."""
    metadata, desired = found.metadata, wanted["metadata"]
    own = {reference["uid"] for reference in desired["ownerReferences"]}
    return {
        "metadata": {
            **desired,
            "resourceVersion": metadata.resource_version,
            "labels": {**metadata.labels, **desired["labels"]},
            "annotations": {**metadata.annotations, **desired["annotations"]},
            "ownerReferences": [
                *(each for each in _owner_references(found) if each["uid"] not in own),
                *desired["ownerReferences"],
            ],
            "finalizers": list(metadata.finalizers),
        },
        "spec": wanted["spec"],
    }


def _owner_references(found: RawObject) -> list[Manifest]:
    return [msgspec.to_builtins(reference) for reference in found.metadata.owner_references]


def _is_subset(wanted: Any, actual: Any, key: str = "") -> bool:
    """Whether all that is wanted is there. Lists are wanted whole, and 1024Mi is 1Gi."""
    match wanted:
        case dict() | list() if wanted == actual:  # most parts are, and need not be taken apart
            return True
        case dict():
            return (
                isinstance(actual, dict)
                and (key not in EXACT_MATCH_FIELDS or actual.keys() <= wanted.keys())
                and all(_field_matches(actual, name, value, key) for name, value in wanted.items())
            )
        case list():
            return (
                isinstance(actual, list)
                and len(wanted) == len(actual)
                and all(_is_subset(one, other) for one, other in zip(wanted, actual, strict=True))
            )
        case str() if key in QUANTITY_FIELDS and isinstance(actual, str):
            return same_quantity(wanted, actual)
        case _:
            return type(wanted) is type(actual) and bool(wanted == actual)


def _field_matches(actual: Manifest, name: str, value: Any, key: str) -> bool:
    if name not in actual:
        return _is_omitted_when_empty(name, value)
    return _is_subset(value, actual[name], key if key in QUANTITY_FIELDS else name)


def _is_omitted_when_empty(name: str, value: Any) -> bool:
    """Whether the API server leaves such a value out. It keeps a false and a 0 that differ from the default."""
    return value in (None, "", [], {}) or (name == "readOnly" and value is False)
