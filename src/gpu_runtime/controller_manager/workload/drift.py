"""Drift detection for children. No I/O.

The functions check who owns an object and whether it matches the desired manifest. They also build its update.
"""

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
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
"""Maps that must be equal, because an additional entry would change their meaning."""

RESTARTED_AT_ANNOTATION = "kubectl.kubernetes.io/restartedAt"
"""The annotation that `kubectl rollout restart` adds to a pod template."""

API_SERVER_DEFAULTS: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "apiVersion": ("v1",),
        "defaultMode": (0o644,),
        "dnsPolicy": ("ClusterFirst",),
        "failureThreshold": (3,),
        "internalTrafficPolicy": ("Cluster",),
        "periodSeconds": (10,),
        "restartPolicy": ("Always",),
        "scheme": ("HTTP",),
        "schedulerName": ("default-scheduler",),
        "sessionAffinity": ("None", "ClientIP"),
        "successThreshold": (1,),
        "terminationMessagePath": ("/dev/termination-log",),
        "timeoutSeconds": (1,),
    }
)
"""Fields that the API server adds to a spec, and their values. Any other additional field is drift: another client
could for example set `hostNetwork` or `privileged`."""

FREE_FIELDS = (
    "clusterIP",
    "clusterIPs",
    "ipFamilies",
    "ipFamilyPolicy",
    "sessionAffinityConfig",
    "progressDeadlineSeconds",
    RESTARTED_AT_ANNOTATION,
)
"""Additional fields that may have any value. The API server chooses some of them. The others do not affect the
pods."""


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
    """Return whether the live object equals the desired manifest. Its metadata may contain more, and its spec may also
    contain the defaults of the API server."""
    metadata, desired_metadata = live.metadata, desired["metadata"]
    return (
        desired_metadata["labels"].items() <= metadata.labels.items()
        and desired_metadata["annotations"].items() <= metadata.annotations.items()
        and all(reference in _owner_references(live) for reference in desired_metadata["ownerReferences"])
        and _is_equivalent(desired["spec"], live.spec)
    )


def matches_template(live: RawObject | None, template: Manifest) -> bool:
    """Return whether the live Deployment has this pod template."""
    return live is not None and _is_equivalent(template, live.spec.get("template"))


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


def _is_equivalent(desired: Any, actual: Any, key: str = "") -> bool:
    """Return whether the actual value has all desired fields, and no others except defaults of the API server.

    Lists must have the same length. 1024Mi equals 1Gi.
    """
    match desired:
        case dict() | list() if desired == actual:  # fast path: most parts are equal
            return True
        case dict():
            return (
                isinstance(actual, dict)
                and (key not in EXACT_MATCH_FIELDS or actual.keys() <= desired.keys())
                and all(name in desired or _is_harmless(name, value) for name, value in actual.items())
                and all(_field_matches(actual, name, value, key) for name, value in desired.items())
            )
        case list():
            return (
                isinstance(actual, list)
                and len(desired) == len(actual)
                and all(_is_equivalent(one, other) for one, other in zip(desired, actual, strict=True))
            )
        case str() if key in QUANTITY_FIELDS and isinstance(actual, str):
            return same_quantity(desired, actual)
        case _:
            return type(desired) is type(actual) and bool(desired == actual)


def _field_matches(actual: Manifest, name: str, value: Any, key: str) -> bool:
    if name not in actual:
        # The API server omits empty values, and `readOnly: false`, which is the default.
        return value in (None, "", [], {}) or (name == "readOnly" and value is False)
    return _is_equivalent(value, actual[name], key if key in QUANTITY_FIELDS else name)


def _is_harmless(name: str, value: Any) -> bool:
    """Return whether an additional field does not change what the object does."""
    if name == "annotations" and isinstance(value, dict):
        return all(_is_harmless(each, entry) for each, entry in value.items())
    return name in FREE_FIELDS or value in (None, "", [], {}) or value in API_SERVER_DEFAULTS.get(name, ())
