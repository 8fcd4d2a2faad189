"""Which requests are taken, and in which spelling. Pure: what is refused here has written nothing.

Every refusal names all that is wrong at once, by the paths of the caller's own document.
"""

from msgspec import UNSET, structs

from gpu_runtime.contract.crd.gpu_unit import GPUUnitSpec
from gpu_runtime.contract.crd.well_known import UnitRole
from gpu_runtime.contract.errors import Invalid
from gpu_runtime.contract.validation import (
    FieldError,
    name_errors,
    normalize_unit,
    operation_id_errors,
    unit_errors,
)
from gpu_runtime.contract.validation.field_error import FieldErrors
from gpu_runtime.kube.quantity import canonical_quantity
from gpu_runtime.runtime_api.settings import APINamespaceSettings
from gpu_runtime.runtime_api.units.requests import CreateUnit, UpdateUnit

MUTABLE_FIELDS = ("image", "template", "access", "storage_mounts", "serverless")


def admit_unit(request: CreateUnit, namespaces: APINamespaceSettings) -> CreateUnit:
    """The request in its one spelling, with what it leaves to the configuration. Raises Invalid."""
    spec = normalize_unit(request.spec())
    request = structs.replace(
        request,
        namespace=request.namespace or namespaces.units[0],
        stock_namespace=request.stock_namespace or namespaces.stock,
        **{field: getattr(spec, field) for field in MUTABLE_FIELDS},
    )
    _raise_if_invalid(
        *operation_id_errors(request.operation_id),
        *name_errors(request.name),
        *namespace_errors(request.namespace, namespaces),
        *_stock_namespace_errors(request.stock_namespace, namespaces),
        *unit_errors(spec, UnitRole.ACTIVE),
    )
    return request


def apply_update(spec: GPUUnitSpec, request: UpdateUnit) -> GPUUnitSpec:
    """The spec with what the request names, and nothing else, changed. Raises Invalid."""
    given = {field: value for field in MUTABLE_FIELDS if (value := getattr(request, field)) is not UNSET}
    spelled = normalize_unit(structs.replace(spec, **given))
    wanted = structs.replace(spec, **{field: getattr(spelled, field) for field in given})
    _raise_if_invalid(
        *_reservation_errors(spec, request),
        *_request_id_change_errors(spec, wanted),
        *unit_errors(wanted, UnitRole.ACTIVE),
    )
    return wanted


def resolve_namespace(namespace: str, namespaces: APINamespaceSettings) -> str:
    """The namespace that is meant, by default the first one. Raises Invalid."""
    _raise_if_invalid(*namespace_errors(namespace, namespaces))
    return namespace or namespaces.units[0]


def namespace_errors(namespace: str, namespaces: APINamespaceSettings) -> FieldErrors:
    if namespace and namespace not in namespaces.units:
        known = " or ".join(namespaces.units)
        yield FieldError("namespace", f"{namespace!r} holds no units here; use {known}, or leave it out")


def _stock_namespace_errors(namespace: str, namespaces: APINamespaceSettings) -> FieldErrors:
    if namespace != namespaces.stock:
        yield FieldError(
            "stockNamespace", f"{namespace!r} holds no stock here; use {namespaces.stock}, or leave it out"
        )


def _reservation_errors(spec: GPUUnitSpec, request: UpdateUnit) -> FieldErrors:
    if request.spec_name not in (UNSET, spec.spec_name):
        yield FieldError("specName", f"never changes from {spec.spec_name}; create another unit of the other flavor")
    if request.memory is not UNSET and canonical_quantity(request.memory) != canonical_quantity(spec.memory):
        yield FieldError(
            "memory", f"never changes from {spec.memory or 'none'}, which was reserved; create another unit"
        )
    if request.gpu not in (UNSET, spec.gpu):
        yield FieldError("gpu", f"never changes from {spec.gpu}, which were reserved; create another unit")


def _request_id_change_errors(spec: GPUUnitSpec, wanted: GPUUnitSpec) -> FieldErrors:
    before = spec.serverless.request_id if spec.serverless else ""
    after = wanted.serverless.request_id if wanted.serverless else ""
    if before and after != before:
        text = f"never changes from {before!r}, in whose queue invocations may be waiting; repeat it"
        yield FieldError("serverless.requestID", text)


def _raise_if_invalid(*problems: FieldError) -> None:
    if problems:
        raise Invalid(tuple(dict.fromkeys(problems)))
