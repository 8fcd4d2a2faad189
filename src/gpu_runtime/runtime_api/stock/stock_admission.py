"""Validates and normalizes requests for stock and pools. Pure functions: nothing is written here.

`Invalid` reports all errors of a request together.
"""

from collections.abc import Sequence

from msgspec.structs import asdict, replace

from gpu_runtime.contract.crd.operation import MAX_STOCK_PER_OPERATION
from gpu_runtime.contract.crd.reservation import reservation_fields
from gpu_runtime.contract.crd.well_known import MAX_POOL_NAME_LENGTH, UnitRole, generated_pool_name
from gpu_runtime.contract.errors import require_valid
from gpu_runtime.contract.recorded_requests import RecordedPoolRequest, RecordedSeedRequest
from gpu_runtime.contract.validation import (
    name_errors,
    namespace_errors,
    normalize_pool,
    normalize_unit,
    operation_id_errors,
    pool_errors,
    unit_errors,
)
from gpu_runtime.contract.validation.field_error import FieldError, FieldErrors
from gpu_runtime.contract.validation.pod_policy import DEFAULT_POD_POLICY, PodPolicy
from gpu_runtime.contract.validation.values import count_errors
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.runtime_api.settings import APINamespaceSettings
from gpu_runtime.runtime_api.stock.requests import CreateStockPool, SeedStock


def admit_pool(
    request: CreateStockPool, namespaces: APINamespaceSettings, policy: PodPolicy = DEFAULT_POD_POLICY
) -> RecordedPoolRequest:
    """Return the normalized request with its defaults, as it is recorded. Equivalent requests are equal.

    Raises Invalid.
    """
    defaults = {
        "name": request.name or generated_pool_name(request.operation_id),
        "namespace": request.namespace or namespaces.pools[0],
    }
    requested = RecordedPoolRequest(**asdict(request) | defaults)
    spec = normalize_pool(requested.pool_spec())
    changes = {"image": spec.image, "template": spec.template, "access": spec.access, **reservation_fields(spec)}
    normalized = replace(requested, **changes)
    require_valid(
        *operation_id_errors(normalized.operation_id),
        *name_errors(normalized.name, max_length=MAX_POOL_NAME_LENGTH),
        *namespace_errors(normalized.namespace, namespaces.pools, "pools"),
        *(adoptable_namespace_errors(normalized.namespace, namespaces.units) if normalized.adoptable else ()),
        *pool_errors(spec, policy=policy),
    )
    return normalized


def adoptable_namespace_errors(namespace: str, of_units: Sequence[str]) -> FieldErrors:
    """Yield an error if no unit can ever use the pods of an adoptable pool, because a pod keeps its namespace."""
    if namespace not in of_units:
        usable = " or ".join(of_units)
        text = f"no unit in {namespace!r} can use the pool; set the namespace of an adoptable pool to {usable}"
        yield FieldError("namespace", text)


def admit_seed(request: SeedStock) -> RecordedSeedRequest:
    """Return the normalized request, as it is recorded. Raises Invalid."""
    requested = RecordedSeedRequest(**asdict(request))
    spec = normalize_unit(requested.unit_spec())
    normalized = replace(requested, **reservation_fields(spec))
    require_valid(
        *operation_id_errors(normalized.operation_id),
        *unit_errors(spec, UnitRole.STOCK),
        *count_errors(normalized.replicas, "replicas", minimum=1, maximum=MAX_STOCK_PER_OPERATION),
    )
    return normalized


def pool_key(namespace: str, name: str, namespaces: APINamespaceSettings) -> ObjectKey:
    """Return the key of the requested pool. Raises Invalid if no pool can have this name or namespace."""
    require_valid(
        *name_errors(name, max_length=MAX_POOL_NAME_LENGTH), *namespace_errors(namespace, namespaces.pools, "pools")
    )
    return ObjectKey(namespace or namespaces.pools[0], name)
