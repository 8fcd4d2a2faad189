"""Which requests are taken, and in which spelling. Pure: what is refused here has written nothing."""

import hashlib

from msgspec import structs

from gpu_runtime.contract.crd.gpu_storage import GPUStorageSpec
from gpu_runtime.contract.errors import Invalid
from gpu_runtime.contract.request_hash import canonical_request
from gpu_runtime.contract.validation import (
    Problem,
    growth_problems,
    name_problems,
    normalised_storage,
    storage_problems,
)
from gpu_runtime.contract.validation.field_error import Problems
from gpu_runtime.kube.quantity import Quantity, canonical, same_quantity
from gpu_runtime.runtime_api.settings import Namespaces
from gpu_runtime.runtime_api.storages.requests import CreateStorage, UpdateStorage


def accepted(request: CreateStorage, namespaces: Namespaces) -> CreateStorage:
    """The request in its one spelling, with what it leaves to the configuration. Raises Invalid."""
    spec = normalised_storage(request.spec())
    _refuse(
        *name_problems(request.name),
        *_namespace_problems(request.namespace, namespaces),
        *storage_problems(spec),
    )
    return structs.replace(
        request,
        namespace=request.namespace or namespaces.units[0],
        size=spec.size,
        storage_class_name=spec.storage_class_name,
    )


def grown(spec: GPUStorageSpec, request: UpdateStorage) -> GPUStorageSpec:
    """The spec with the size that is asked for; as it is where that says the same in other words. Raises Invalid."""
    _refuse(*growth_problems(spec.size, request.size))
    return spec if same_quantity(spec.size, request.size) else structs.replace(spec, size=canonical(request.size))


def chosen(namespace: str, namespaces: Namespaces) -> str:
    """The namespace that is meant, by default the first one. Raises Invalid."""
    _refuse(*_namespace_problems(namespace, namespaces))
    return namespace or namespaces.units[0]


def identity(request: CreateStorage) -> str:
    """The same for accepted requests that mean the same, also after the storage has grown."""
    amount = structs.replace(request, size=str(Quantity(request.size).value))  # 20Gi is 21474836480
    return hashlib.sha256(canonical_request(amount).encode()).hexdigest()


def is_as_asked(spec: GPUStorageSpec, request: CreateStorage) -> bool:
    """Whether an accepted request would have made the same."""
    return same_quantity(spec.size, request.size) and spec.storage_class_name == request.storage_class_name


def _namespace_problems(namespace: str, namespaces: Namespaces) -> Problems:
    if namespace and namespace not in namespaces.units:
        known = " or ".join(namespaces.units)
        yield Problem("namespace", f"{namespace!r} holds no storages here; use {known}, or leave it out")


def _refuse(*problems: Problem) -> None:
    if problems:
        raise Invalid(tuple(dict.fromkeys(problems)))
