"""Which requests are taken, and in which spelling. Pure: what is refused here has written nothing.

Every refusal names all that is wrong at once, by the paths of the caller's own document.
"""

from msgspec import UNSET, structs

from gpu_runtime.contract.crd.gpu_unit import GPUUnitSpec
from gpu_runtime.contract.crd.well_known import Role
from gpu_runtime.contract.errors import Invalid
from gpu_runtime.contract.validation import (
    Problem,
    name_problems,
    normalised_unit,
    operation_id_problems,
    unit_problems,
)
from gpu_runtime.contract.validation.field_error import Problems
from gpu_runtime.kube.quantity import canonical
from gpu_runtime.runtime_api.settings import Namespaces
from gpu_runtime.runtime_api.units.requests import CreateUnit, UpdateUnit

CHANGEABLE = ("image", "template", "access", "storage_mounts", "serverless")


def accepted(request: CreateUnit, namespaces: Namespaces) -> CreateUnit:
    """The request in its one spelling, with what it leaves to the configuration. Raises Invalid."""
    spec = normalised_unit(request.spec())
    request = structs.replace(
        request,
        namespace=request.namespace or namespaces.units[0],
        stock_namespace=request.stock_namespace or namespaces.stock,
        **{field: getattr(spec, field) for field in CHANGEABLE},
    )
    _refuse(
        *operation_id_problems(request.operation_id),
        *name_problems(request.name),
        *namespace_problems(request.namespace, namespaces),
        *_stock_namespace_problems(request.stock_namespace, namespaces),
        *unit_problems(spec, Role.ACTIVE),
    )
    return request


def updated(spec: GPUUnitSpec, request: UpdateUnit) -> GPUUnitSpec:
    """The spec with what the request names, and nothing else, changed. Raises Invalid."""
    given = {field: value for field in CHANGEABLE if (value := getattr(request, field)) is not UNSET}
    spelled = normalised_unit(structs.replace(spec, **given))
    wanted = structs.replace(spec, **{field: getattr(spelled, field) for field in given})
    _refuse(
        *_envelope_problems(spec, request), *_request_id_problems(spec, wanted), *unit_problems(wanted, Role.ACTIVE)
    )
    return wanted


def chosen(namespace: str, namespaces: Namespaces) -> str:
    """The namespace that is meant, by default the first one. Raises Invalid."""
    _refuse(*namespace_problems(namespace, namespaces))
    return namespace or namespaces.units[0]


def namespace_problems(namespace: str, namespaces: Namespaces) -> Problems:
    if namespace and namespace not in namespaces.units:
        known = " or ".join(namespaces.units)
        yield Problem("namespace", f"{namespace!r} holds no units here; use {known}, or leave it out")


def _stock_namespace_problems(namespace: str, namespaces: Namespaces) -> Problems:
    if namespace != namespaces.stock:
        yield Problem("stockNamespace", f"{namespace!r} holds no stock here; use {namespaces.stock}, or leave it out")


def _envelope_problems(spec: GPUUnitSpec, request: UpdateUnit) -> Problems:
    if request.spec_name not in (UNSET, spec.spec_name):
        yield Problem("specName", f"never changes from {spec.spec_name}; create another unit of the other flavour")
    if request.memory is not UNSET and canonical(request.memory) != canonical(spec.memory):
        yield Problem("memory", f"never changes from {spec.memory or 'none'}, which was reserved; create another unit")
    if request.gpu not in (UNSET, spec.gpu):
        yield Problem("gpu", f"never changes from {spec.gpu}, which were reserved; create another unit")


def _request_id_problems(spec: GPUUnitSpec, wanted: GPUUnitSpec) -> Problems:
    before = spec.serverless.request_id if spec.serverless else ""
    after = wanted.serverless.request_id if wanted.serverless else ""
    if before and after != before:
        text = f"never changes from {before!r}, in whose queue invocations may be waiting; repeat it"
        yield Problem("serverless.requestID", text)


def _refuse(*problems: Problem) -> None:
    if problems:
        raise Invalid(tuple(dict.fromkeys(problems)))
