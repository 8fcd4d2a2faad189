"""Validation of whole specs.

The API converts a request to the spec that it would write, and validates this spec. The errors have the paths of the
request.
"""

from gpu_runtime.contract.crd.gpu_storage import GPUStorageSpec
from gpu_runtime.contract.crd.gpu_unit import GPUUnitSpec
from gpu_runtime.contract.crd.stock_pool import StockPoolSpec
from gpu_runtime.contract.crd.well_known import UnitRole
from gpu_runtime.contract.prepared_units import prepared_unit
from gpu_runtime.contract.unit_lifetime import LIFETIME_FIELDS
from gpu_runtime.contract.validation.field_error import FieldError, FieldErrors, child_path, first_errors
from gpu_runtime.contract.validation.lifetimes import lifetime_errors
from gpu_runtime.contract.validation.mounts import mount_errors
from gpu_runtime.contract.validation.pod_policy import DEFAULT_POD_POLICY, PodPolicy
from gpu_runtime.contract.validation.probe_fields import probe_errors
from gpu_runtime.contract.validation.reservations import reservation_errors, shared_memory_errors
from gpu_runtime.contract.validation.serverless import serverless_errors
from gpu_runtime.contract.validation.template_and_access import access_errors, size_errors, template_errors
from gpu_runtime.contract.validation.values import bytes_errors, count_errors, image_errors, spec_name_errors
from gpu_runtime.kube.quantity import Quantity


def unit_errors(
    spec: GPUUnitSpec, role: UnitRole, path: str = "", policy: PodPolicy = DEFAULT_POD_POLICY
) -> tuple[FieldError, ...]:
    """Return the first errors of a unit. For a stock unit, which only reserves resources, image, template and access
    are not validated."""
    errors = _stock_unit_errors(spec, path) if role is UnitRole.STOCK else _active_unit_errors(spec, path, policy)
    return first_errors(_reservation_errors(spec, path), errors)


def pool_errors(spec: StockPoolSpec, path: str = "", policy: PodPolicy = DEFAULT_POD_POLICY) -> tuple[FieldError, ...]:
    return first_errors(
        _reservation_errors(spec, path),
        count_errors(spec.replicas, child_path(path, "replicas")),
        image_errors(spec.image, child_path(path, "image")) if spec.image else (),
        template_errors(spec.template, child_path(path, "template"), policy),
        shared_memory_errors(spec, spec.template, path),
        mount_errors((), spec.template.secret_mounts, path),
        _adoption_errors(spec, path),
    )


def storage_errors(spec: GPUStorageSpec, path: str = "") -> tuple[FieldError, ...]:
    return first_errors(_storage_errors(spec, path))


def growth_errors(current: str, desired: str) -> FieldErrors:
    """Yield the errors of the new size of a storage. If the current size is invalid, any valid new size is accepted."""
    if any(bytes_errors(desired, "size")):
        yield from bytes_errors(desired, "size")
    elif not any(bytes_errors(current, "size")) and Quantity(desired).value < Quantity(current).value:
        yield FieldError("size", f"{desired} is less than the current size {current}; a storage can only grow")


def _reservation_errors(spec: GPUUnitSpec | StockPoolSpec, at: str) -> FieldErrors:
    yield from spec_name_errors(spec.spec_name, child_path(at, "specName"))
    yield from reservation_errors(spec, at)


def _active_unit_errors(spec: GPUUnitSpec, at: str, policy: PodPolicy) -> FieldErrors:
    yield from image_errors(spec.image, child_path(at, "image"))
    yield from template_errors(spec.template, child_path(at, "template"), policy)
    yield from shared_memory_errors(spec, spec.template, at)
    if spec.access:
        yield from access_errors(spec.access, spec.template.ports, child_path(at, "access"))
    if spec.probes:
        yield from probe_errors(spec.probes, spec, child_path(at, "probes"))
        yield from size_errors(spec.probes, child_path(at, "probes"))
    yield from mount_errors(spec.storage_mounts, spec.template.secret_mounts, at)
    yield from lifetime_errors(spec, at)
    if spec.serverless:
        yield from serverless_errors(spec.serverless, spec, child_path(at, "serverless"), policy)


def _adoption_errors(spec: StockPoolSpec, at: str) -> FieldErrors:
    """Yield the errors of the fields that only an adoptable pool has."""
    given = {"access": spec.access is not None, "probes": spec.probes is not None}
    if not spec.adoptable:
        for name in (name for name, is_given in given.items() if is_given):
            yield FieldError(child_path(at, name), "is only for adoptable pools; set adoptable, or remove this field")
        return
    unit = prepared_unit(spec)
    if unit.access:
        yield from access_errors(unit.access, unit.template.ports, child_path(at, "access"))
    if unit.probes:
        yield from probe_errors(unit.probes, unit, child_path(at, "probes"))


def _stock_unit_errors(spec: GPUUnitSpec, at: str) -> FieldErrors:
    if spec.storage_mounts:
        yield FieldError(child_path(at, "storageMounts"), "a stock unit cannot mount storages; use an active unit")
    if spec.is_function:
        yield FieldError(child_path(at, "serverless"), "a stock unit cannot be a function; use an active unit")
    for field, name in LIFETIME_FIELDS.items():
        if getattr(spec, field) is not None:
            yield FieldError(child_path(at, name), "a stock unit has no lifetime; remove this field")


def _storage_errors(spec: GPUStorageSpec, at: str) -> FieldErrors:
    if not spec.size:
        yield FieldError(child_path(at, "size"), "is required; write for example 20Gi")
    else:
        yield from bytes_errors(spec.size, child_path(at, "size"))
    name = spec.storage_class_name
    if not name or len(name) > 253 or not name.isprintable() or any(map(str.isspace, name)):
        text = f"{name!r} is not the name of a StorageClass; use 1 to 253 printable characters without spaces"
        yield FieldError(child_path(at, "storageClassName"), text)
