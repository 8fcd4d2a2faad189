"""Validates and normalizes create and resize requests for storages. Pure functions: nothing is written here."""

import hashlib

from msgspec import structs

from gpu_runtime.contract.crd.gpu_storage import GPUStorageSpec
from gpu_runtime.contract.errors import require_valid
from gpu_runtime.contract.recorded_requests import RecordedStorageRequest
from gpu_runtime.contract.request_hash import canonical_request
from gpu_runtime.contract.validation import (
    growth_errors,
    name_errors,
    namespace_errors,
    normalize_storage,
    storage_errors,
)
from gpu_runtime.kube.quantity import Quantity, canonical_quantity, same_quantity
from gpu_runtime.runtime_api.settings import APINamespaceSettings
from gpu_runtime.runtime_api.storages.requests import CreateStorage, UpdateStorage


def admit_storage(request: CreateStorage, namespaces: APINamespaceSettings) -> CreateStorage:
    """Return the normalized request with the configured defaults. Raises Invalid."""
    spec = normalize_storage(request.spec())
    require_valid(
        *name_errors(request.name),
        *namespace_errors(request.namespace, namespaces.units, "storages"),
        *storage_errors(spec),
    )
    return structs.replace(
        request,
        namespace=request.namespace or namespaces.units[0],
        size=spec.size,
        storage_class_name=spec.storage_class_name,
    )


def apply_resize(spec: GPUStorageSpec, request: UpdateStorage) -> GPUStorageSpec:
    """Return the spec with the requested size, or the spec itself if the sizes are equal. Raises Invalid."""
    require_valid(*growth_errors(spec.size, request.size))
    return (
        spec if same_quantity(spec.size, request.size) else structs.replace(spec, size=canonical_quantity(request.size))
    )


def storage_request_hash(request: CreateStorage) -> str:
    """Return the hash of an admitted request. Equivalent requests have the same hash.

    An annotation of the storage stores the hash, so that the API recognizes a repeated request even after a resize.
    """
    size_in_bytes = str(Quantity(request.size).value)  # 20Gi is 21474836480
    recorded = RecordedStorageRequest(**structs.asdict(request) | {"size": size_in_bytes})
    return hashlib.sha256(canonical_request(recorded).encode()).hexdigest()


def spec_matches_request(spec: GPUStorageSpec, request: CreateStorage) -> bool:
    """Whether an admitted request would have created a storage with this spec."""
    return same_quantity(spec.size, request.size) and spec.storage_class_name == request.storage_class_name
