"""Which requests are taken, and in which spelling. Pure: what is refused here has written nothing."""

import hashlib

from msgspec import structs

from gpu_runtime.contract.crd.gpu_storage import GPUStorageSpec
from gpu_runtime.contract.errors import Invalid
from gpu_runtime.contract.request_hash import canonical_request
from gpu_runtime.contract.validation import (
    FieldError,
    growth_errors,
    name_errors,
    normalize_storage,
    storage_errors,
)
from gpu_runtime.contract.validation.field_error import FieldErrors
from gpu_runtime.kube.quantity import Quantity, canonical_quantity, same_quantity
from gpu_runtime.runtime_api.settings import APINamespaceSettings
from gpu_runtime.runtime_api.storages.requests import CreateStorage, UpdateStorage


def admit_storage(request: CreateStorage, namespaces: APINamespaceSettings) -> CreateStorage:
    """The request in its one spelling, with what it leaves to the configuration. Raises Invalid."""
    spec = normalize_storage(request.spec())
    _raise_if_invalid(
        *name_errors(request.name),
        *_namespace_errors(request.namespace, namespaces),
        *storage_errors(spec),
    )
    return structs.replace(
        request,
        namespace=request.namespace or namespaces.units[0],
        size=spec.size,
        storage_class_name=spec.storage_class_name,
    )


def apply_resize(spec: GPUStorageSpec, request: UpdateStorage) -> GPUStorageSpec:
    """The spec with the size that is asked for; as it is where that says the same in other words. Raises Invalid."""
    _raise_if_invalid(*growth_errors(spec.size, request.size))
    return (
        spec if same_quantity(spec.size, request.size) else structs.replace(spec, size=canonical_quantity(request.size))
    )


def resolve_namespace(namespace: str, namespaces: APINamespaceSettings) -> str:
    """The namespace that is meant, by default the first one. Raises Invalid."""
    _raise_if_invalid(*_namespace_errors(namespace, namespaces))
    return namespace or namespaces.units[0]


def storage_request_hash(request: CreateStorage) -> str:
    """The same for accepted requests that mean the same, also after the storage has grown."""
    amount = structs.replace(request, size=str(Quantity(request.size).value))  # 20Gi is 21474836480
    return hashlib.sha256(canonical_request(amount).encode()).hexdigest()


def spec_matches_request(spec: GPUStorageSpec, request: CreateStorage) -> bool:
    """Whether an accepted request would have made the same."""
    return same_quantity(spec.size, request.size) and spec.storage_class_name == request.storage_class_name


def _namespace_errors(namespace: str, namespaces: APINamespaceSettings) -> FieldErrors:
    if namespace and namespace not in namespaces.units:
        known = " or ".join(namespaces.units)
        yield FieldError("namespace", f"{namespace!r} holds no storages here; use {known}, or leave it out")


def _raise_if_invalid(*problems: FieldError) -> None:
    if problems:
        raise Invalid(tuple(dict.fromkeys(problems)))
