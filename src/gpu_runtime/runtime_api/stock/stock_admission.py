"""What operators may ask: a request in its one spelling, or Invalid with everything that is wrong with it. Pure."""

from collections.abc import Sequence

from msgspec.structs import replace

from gpu_runtime.contract.crd.operation import STOCK_LIMIT
from gpu_runtime.contract.crd.well_known import POOL_NAME_LIMIT, Role, generated_pool_name
from gpu_runtime.contract.errors import Invalid
from gpu_runtime.contract.validation import (
    Problem,
    name_problems,
    normalised_pool,
    normalised_unit,
    operation_id_problems,
    pool_problems,
    unit_problems,
)
from gpu_runtime.contract.validation.field_error import Problems
from gpu_runtime.contract.validation.values import count_problems
from gpu_runtime.kube.meta import Key
from gpu_runtime.runtime_api.settings import Namespaces
from gpu_runtime.runtime_api.stock.requests import CreateStockPool, SeedStock


def accepted_pool(request: CreateStockPool, namespaces: Namespaces) -> CreateStockPool:
    """With name, namespace and values spelled out: a retry that leaves them out or spells them otherwise is equal."""
    spec = normalised_pool(request.spec())
    asked = replace(
        request,
        name=request.name or generated_pool_name(request.operation_id),
        namespace=request.namespace or namespaces.pools[0],
        image=spec.image,
        memory=spec.memory,
        template=spec.template,
    )
    _refuse(
        (
            *operation_id_problems(asked.operation_id),
            *name_problems(asked.name, limit=POOL_NAME_LIMIT),
            *_namespace_problems(asked.namespace, namespaces.pools),
            *pool_problems(spec),
        )
    )
    return asked


def accepted_seed(request: SeedStock) -> SeedStock:
    spec = normalised_unit(request.spec())
    asked = replace(request, memory=spec.memory)
    _refuse(
        (
            *operation_id_problems(asked.operation_id),
            *unit_problems(spec, Role.STOCK),
            *count_problems(asked.replicas, "replicas", least=1, most=STOCK_LIMIT),
        )
    )
    return asked


def pool_key(namespace: str, name: str, namespaces: Namespaces) -> Key:
    """Which pool is meant. A name that no pool can have is refused as such; one that no pool has is not known here."""
    where = namespace or namespaces.pools[0]
    _refuse((*name_problems(name, limit=POOL_NAME_LIMIT), *_namespace_problems(where, namespaces.pools)))
    return Key(where, name)


def _namespace_problems(namespace: str, allowed: Sequence[str]) -> Problems:
    if namespace not in allowed:
        yield Problem("namespace", f"{namespace!r} is not allowed for pools; use {' or '.join(allowed)}")


def _refuse(problems: Sequence[Problem]) -> None:
    if problems:
        raise Invalid(problems)
