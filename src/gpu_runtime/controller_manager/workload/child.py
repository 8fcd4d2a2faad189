"""An object that belongs to a unit or a pool: whose it is, what it should be, and whether it is that. Pure."""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from gpu_runtime.contract.crd.names import GROUP
from gpu_runtime.kube.core import Deployment, Service
from gpu_runtime.kube.objects import Manifest, Object, Resource
from gpu_runtime.kube.quantity import same_quantity

DESIRED_HASH = f"{GROUP}/desired-hash"
"""On every child: the digest of what it was last made to be. It changes when a field is no longer wanted, which a
comparison of the wanted fields alone would miss."""

AMOUNTS = ("limits", "requests")


def child(owner: Object, resource: Resource[Any], name: str, labels: Mapping[str, str], spec: Manifest) -> Manifest:
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
            "annotations": {DESIRED_HASH: digest(spec)},
            "ownerReferences": [reference],
        },
        "spec": spec,
    }


def digest(spec: Manifest) -> str:
    return hashlib.sha256(msgspec.json.encode(spec, order="sorted")).hexdigest()[:16]


def is_owned(found: Object, owner: Object) -> bool:
    reference = found.metadata.controller
    return reference is not None and reference.uid == owner.metadata.uid


def fits(found: Deployment | Service, wanted: Manifest) -> bool:
    """Whether an object is what it should be, in every field that is wanted of it."""
    metadata, desired = found.metadata, wanted["metadata"]
    return (
        _within(desired["labels"], metadata.labels)
        and _within(desired["annotations"], metadata.annotations)
        and _within(wanted["spec"], found.spec)
    )


def replacement(found: Object, wanted: Manifest) -> Manifest:
    """What to write over an object: the wanted spec whole, and of its metadata what others have put there, too."""
    metadata, desired = found.metadata, wanted["metadata"]
    return {
        "metadata": {
            **desired,
            "resourceVersion": metadata.resource_version,
            "labels": {**metadata.labels, **desired["labels"]},
            "annotations": {**metadata.annotations, **desired["annotations"]},
            "finalizers": list(metadata.finalizers),
        },
        "spec": wanted["spec"],
    }


def _within(wanted: Any, actual: Any, key: str = "") -> bool:
    """Whether all that is wanted is there. Lists are wanted whole, and 1024Mi is 1Gi."""
    if wanted == actual:  # mostly, and at the speed of C
        return True
    match wanted:
        case dict():
            return isinstance(actual, dict) and all(
                name in actual and _within(value, actual[name], key if key in AMOUNTS else name)
                for name, value in wanted.items()
            )
        case list():
            return (
                isinstance(actual, list | tuple)
                and len(wanted) == len(actual)
                and all(_within(one, other) for one, other in zip(wanted, actual, strict=True))
            )
        case str() if key in AMOUNTS and isinstance(actual, str):
            return same_quantity(wanted, actual)
        case _:
            return False
