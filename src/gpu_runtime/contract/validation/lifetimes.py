"""Validation of the lifetime of a unit, and of its changes."""

from gpu_runtime.contract.crd.gpu_unit import MAX_LIFETIME_SECONDS, GPUUnitSpec
from gpu_runtime.contract.unit_lifetime import LIFETIME_FIELDS, extension
from gpu_runtime.contract.validation.field_error import FieldError, FieldErrors, child_path
from gpu_runtime.contract.validation.values import count_errors


def lifetime_errors(spec: GPUUnitSpec, at: str) -> FieldErrors:
    for field, name in LIFETIME_FIELDS.items():
        seconds, path = getattr(spec, field), child_path(at, name)
        if seconds is None:
            continue
        yield from count_errors(seconds, path, 1, MAX_LIFETIME_SECONDS)
        if spec.serves_function:
            yield FieldError(path, "functions and workers have no lifetime; remove this field")
    if spec.extended_until is not None and extension(spec) is None:
        text = f"{spec.extended_until!r} is not a time; write for example 2030-01-31T12:00:00Z"
        yield FieldError(child_path(at, "extendedUntil"), text)


def lifetime_change_errors(before: GPUUnitSpec, after: GPUUnitSpec) -> FieldErrors:
    """Yield an error for each lifetime that becomes shorter. A shorter lifetime could end the unit immediately."""
    for field, name in LIFETIME_FIELDS.items():
        old, new = getattr(before, field), getattr(after, field)
        if old is not None and new is not None and new < old:
            yield FieldError(name, f"cannot be lowered from {old} to {new}; stop or delete the unit instead")
