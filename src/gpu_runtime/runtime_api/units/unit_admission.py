"""Validates and normalizes create and update requests for units. Pure functions: nothing is written here.

`Invalid` reports all errors of a request together, with the field paths of the caller's JSON document.
"""

from datetime import MAXYEAR, UTC, datetime, timedelta
from typing import Any

from msgspec import UNSET, structs

from gpu_runtime.contract.crd.gpu_unit import GPUUnit, GPUUnitSpec
from gpu_runtime.contract.crd.probes import DEFAULT_READINESS_PROBE
from gpu_runtime.contract.crd.reservation import Reservation
from gpu_runtime.contract.crd.well_known import UnitRole
from gpu_runtime.contract.errors import Invalid, LifetimeEnded, require_valid
from gpu_runtime.contract.prepared_units import with_default_probe
from gpu_runtime.contract.recorded_requests import RecordedUnitRequest
from gpu_runtime.contract.stock_grades import StockGrade
from gpu_runtime.contract.unit_lifetime import LIFETIME_FIELDS, STOP_FIELDS, extension, format_time, is_run_ended
from gpu_runtime.contract.validation import (
    FieldError,
    name_errors,
    namespace_errors,
    normalize_unit,
    operation_id_errors,
    unit_errors,
)
from gpu_runtime.contract.validation.field_error import FieldErrors
from gpu_runtime.contract.validation.lifetimes import lifetime_change_errors
from gpu_runtime.contract.validation.pod_policy import DEFAULT_POD_POLICY, PodPolicy
from gpu_runtime.kube.quantity import canonical_quantity
from gpu_runtime.runtime_api.settings import APINamespaceSettings
from gpu_runtime.runtime_api.units.requests import CreateUnit, StockChoice, UpdateUnit

MUTABLE_FIELDS = ("image", "template", "access", "probes", "storage_mounts", "serverless", *LIFETIME_FIELDS)
"""Fields that an update may change. The other fields belong to the reservation of the stock."""


def admit_unit(
    request: CreateUnit, namespaces: APINamespaceSettings, policy: PodPolicy = DEFAULT_POD_POLICY
) -> RecordedUnitRequest:
    """Return the normalized request with the configured defaults, as it is recorded. Raises Invalid."""
    return _admit(request, namespaces, policy, _worker_of_errors(request, is_worker=False))


def admit_worker(
    request: CreateUnit, namespaces: APINamespaceSettings, policy: PodPolicy = DEFAULT_POD_POLICY
) -> RecordedUnitRequest:
    """Return the normalized request of a worker, as it is recorded. Raises Invalid."""
    return _admit(request, namespaces, policy, _worker_of_errors(request, is_worker=True))


def _admit(
    request: CreateUnit, namespaces: APINamespaceSettings, policy: PodPolicy, errors: FieldErrors
) -> RecordedUnitRequest:
    defaults: dict[str, Any] = {
        "namespace": request.namespace or namespaces.units[0],
        "stock_namespace": request.stock_namespace or namespaces.stock,
    }
    fields = structs.asdict(request)
    stock: StockChoice | None = fields.pop("stock")
    grades = {grade.value for grade in stock.grades} if stock else set()
    # In a fixed order, so that requests with the same meaning have the same hash.
    defaults["grades"] = tuple(grade.value for grade in StockGrade if grade.value in grades)
    requested = RecordedUnitRequest(**fields | defaults)
    spec = normalize_unit(requested.unit_spec())
    # The API adds its probe to the unit, not to the request: the hash covers only what the caller sent.
    normalized = {field: getattr(spec, field) for field in MUTABLE_FIELDS if field != "probes"}
    admitted = structs.replace(requested, **normalized)
    require_valid(
        *operation_id_errors(admitted.operation_id),
        *name_errors(admitted.name),
        *namespace_errors(admitted.namespace, namespaces.units, "units"),
        *_stock_namespace_errors(admitted.stock_namespace, namespaces),
        *_grade_errors(stock),
        *errors,
        *unit_errors(spec, UnitRole.ACTIVE, policy=policy),
    )
    return admitted


def apply_update(unit: GPUUnit, request: UpdateUnit, policy: PodPolicy = DEFAULT_POD_POLICY) -> GPUUnitSpec:
    """Return the spec with the fields that the request contains. Raises Invalid, or LifetimeEnded."""
    spec = unit.spec
    changes = {field: value for field in MUTABLE_FIELDS if (value := getattr(request, field)) is not UNSET}
    changes |= _probe_changes(spec, changes)
    normalized = normalize_unit(structs.replace(spec, **changes))
    desired = structs.replace(spec, **{field: getattr(normalized, field) for field in changes})
    require_valid(
        *_reservation_errors(spec, request),
        *_request_id_change_errors(spec, desired),
        *_worker_of_change_errors(spec, desired),
        *lifetime_change_errors(spec, desired),
        *unit_errors(desired, UnitRole.ACTIVE, policy=policy),
    )
    if any(getattr(spec, field) != getattr(desired, field) for field in STOP_FIELDS):
        require_running_lifetime(unit)
    return desired


def _probe_changes(spec: GPUUnitSpec, changes: dict[str, Any]) -> dict[str, Any]:
    """Return the probes that the update changes: the probe of the API is added again, or removed from a function."""
    serverless = changes.get("serverless", spec.serverless)
    if "probes" in changes:
        return {"probes": with_default_probe(changes["probes"], serverless)}
    becomes_function = spec.serverless is None and serverless is not None
    if becomes_function and spec.probes is not None and spec.probes.readiness == DEFAULT_READINESS_PROBE:
        return {"probes": structs.replace(spec.probes, readiness=None)}
    return {}


def extend(unit: GPUUnit, until: datetime) -> GPUUnitSpec:
    """Return the spec with the later end. Raises Invalid, or LifetimeEnded if the platform has stopped the unit."""
    spec = unit.spec
    if spec.stop_unless_extended_seconds is None:
        raise Invalid((FieldError("until", "the unit has no stopUnlessExtendedSeconds; set it with PUT first"),))
    require_running_lifetime(unit)
    try:
        until = until.astimezone(UTC)
    except OverflowError:
        raise Invalid((FieldError("until", "is not a time between the years 1 and 9999"),)) from None
    current = extension(spec)
    if current is not None and current >= until:
        return spec
    is_whole = until.microsecond == 0 or until.year == MAXYEAR
    rounded_up = until if is_whole else until.replace(microsecond=0) + timedelta(seconds=1)
    return structs.replace(spec, extended_until=format_time(rounded_up))


def require_running_lifetime(unit: GPUUnit) -> None:
    if is_run_ended(unit) and not unit.spec.running:
        raise LifetimeEnded(f"the lifetime of unit {unit.metadata.key} is over; start the unit first")


def _stock_namespace_errors(namespace: str, namespaces: APINamespaceSettings) -> FieldErrors:
    if namespace != namespaces.stock:
        yield FieldError(
            "stockNamespace", f"{namespace!r} is not the stock namespace; use {namespaces.stock}, or omit it"
        )


def _grade_errors(stock: StockChoice | None) -> FieldErrors:
    if stock is not None and not stock.grades:
        known = ", ".join(StockGrade)
        yield FieldError("stock.grades", f"is empty; name at least one of {known}, or omit stock")


def _worker_of_errors(request: CreateUnit, *, is_worker: bool) -> FieldErrors:
    worker_of = request.serverless.worker_of if request.serverless else ""
    if worker_of and not is_worker:
        yield FieldError("serverless.workerOf", "is set, but only the activator creates workers; omit it")
    if is_worker and not worker_of:
        yield FieldError("serverless.workerOf", "is missing; name the unit of the function")


def _reservation_errors(spec: GPUUnitSpec, request: UpdateUnit) -> FieldErrors:
    if request.spec_name not in (UNSET, spec.spec_name):
        yield FieldError("specName", f"cannot be changed from {spec.spec_name}; create a unit of the other flavor")
    for field in structs.fields(Reservation):
        current, requested = getattr(spec, field.name), getattr(request, field.name)
        if requested is not UNSET and canonical_quantity(str(requested)) != canonical_quantity(str(current)):
            text = f"cannot be changed from {current or 'none'}, which the unit reserves; create another unit"
            yield FieldError(field.encode_name, text)


def _request_id_change_errors(spec: GPUUnitSpec, desired: GPUUnitSpec) -> FieldErrors:
    before = spec.serverless.request_id if spec.serverless else ""
    after = desired.serverless.request_id if desired.serverless else ""
    if before and after != before:
        text = f"cannot be changed from {before!r}, because its queue may contain invocations; send {before!r}"
        yield FieldError("serverless.requestID", text)


def _worker_of_change_errors(spec: GPUUnitSpec, desired: GPUUnitSpec) -> FieldErrors:
    before = spec.serverless.worker_of if spec.serverless else ""
    after = desired.serverless.worker_of if desired.serverless else ""
    if after != before:
        text = f"cannot be changed from {before!r}, because only the activator creates workers; send {before!r}"
        yield FieldError("serverless.workerOf", text)
