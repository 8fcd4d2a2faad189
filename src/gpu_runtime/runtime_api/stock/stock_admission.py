"""What operators may ask: a request in its one spelling, or Invalid with everything that is wrong with it. Pure."""

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
    """With name, namespace and values spelled out: a retry that leaves them out or spells them otherwise is equal."""
    spec = normalize_pool(request.spec())
    asked = replace(
        request,
        name=request.name or generated_pool_name(request.operation_id),
        namespace=request.namespace or namespaces.pools[0],
        image=spec.image,
        memory=spec.memory,
        template=spec.template,
    )
    _raise_if_invalid(
        (
            *operation_id_errors(asked.operation_id),
            *name_errors(asked.name, max_length=MAX_POOL_NAME_LENGTH),
            *_namespace_errors(asked.namespace, namespaces.pools),
            *pool_errors(spec),
        )
    )
    return asked


def admit_seed(request: SeedStock) -> SeedStock:
    spec = normalize_unit(request.spec())
    asked = replace(request, memory=spec.memory)
    _raise_if_invalid(
        (
            *operation_id_errors(asked.operation_id),
            *unit_errors(spec, UnitRole.STOCK),
            *count_errors(asked.replicas, "replicas", minimum=1, maximum=MAX_STOCK_PER_OPERATION),
        )
    )
    return asked


def pool_key(namespace: str, name: str, namespaces: APINamespaceSettings) -> ObjectKey:
    """Which pool is meant. A name that no pool can have is refused as such; one that no pool has is not known here."""
    where = namespace or namespaces.pools[0]
    _raise_if_invalid(
        (*name_errors(name, max_length=MAX_POOL_NAME_LENGTH), *_namespace_errors(where, namespaces.pools))
    )
    return ObjectKey(where, name)


def _namespace_errors(namespace: str, allowed: Sequence[str]) -> FieldErrors:
    if namespace not in allowed:
        yield FieldError("namespace", f"{namespace!r} is not allowed for pools; use {' or '.join(allowed)}")


def _raise_if_invalid(problems: Sequence[FieldError]) -> None:
    if problems:
        raise Invalid(problems)
