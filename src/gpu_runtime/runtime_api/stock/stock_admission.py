"""Validates and normalizes requests for stock and pools. Pure functions: nothing is written here.

`Invalid` reports all errors of a request together.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from gpu_runtime.contract.crd.operation import MAX_STOCK_PER_OPERATION
from gpu_runtime.contract.crd.well_known import MAX_POOL_NAME_LENGTH, UnitRole, generated_pool_name
from gpu_runtime.contract.errors import Invalid
from gpu_runtime.contract.validation import (
    FieldError,
    name_errors,
    normalize_pool,
    normalize_unit,
    operation_id_errors,
    pool_errors,
    unit_errors,
)
from gpu_runtime.contract.validation.field_error import FieldErrors
from gpu_runtime.contract.validation.values import count_errors
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.runtime_api.settings import APINamespaceSettings
from gpu_runtime.runtime_api.stock.requests import CreateStockPool, SeedStock


def admit_pool(request: CreateStockPool, namespaces: APINamespaceSettings) -> CreateStockPool:
    """Return the normalized request with its defaults, so that equivalent requests are equal. Raises Invalid."""
    spec = normalize_pool(request.spec())
    normalized = replace(
        request,
        name=request.name or generated_pool_name(request.operation_id),
        namespace=request.namespace or namespaces.pools[0],
        image=spec.image,
        memory=spec.memory,
        template=spec.template,
    )
    _raise_if_invalid(
        (
            *operation_id_errors(normalized.operation_id),
            *name_errors(normalized.name, max_length=MAX_POOL_NAME_LENGTH),
            *_namespace_errors(normalized.namespace, namespaces.pools),
            *pool_errors(spec),
        )
    )
    return normalized


def admit_seed(request: SeedStock) -> SeedStock:
    """Return the normalized request. Raises Invalid."""
    spec = normalize_unit(request.spec())
    normalized = replace(request, memory=spec.memory)
    _raise_if_invalid(
        (
            *operation_id_errors(normalized.operation_id),
            *unit_errors(spec, UnitRole.STOCK),
            *count_errors(normalized.replicas, "replicas", minimum=1, maximum=MAX_STOCK_PER_OPERATION),
        )
    )
    return normalized


def pool_key(namespace: str, name: str, namespaces: APINamespaceSettings) -> ObjectKey:
    """Return the key of the requested pool. Raises Invalid if no pool can have this name or namespace."""
    resolved = namespace or namespaces.pools[0]
    _raise_if_invalid(
        (*name_errors(name, max_length=MAX_POOL_NAME_LENGTH), *_namespace_errors(resolved, namespaces.pools))
    )
    return ObjectKey(resolved, name)


def _namespace_errors(namespace: str, allowed: Sequence[str]) -> FieldErrors:
    if namespace not in allowed:
        yield FieldError("namespace", f"{namespace!r} is not allowed for pools; use {' or '.join(allowed)}")


def _raise_if_invalid(errors: Sequence[FieldError]) -> None:
    if errors:
        raise Invalid(errors)
