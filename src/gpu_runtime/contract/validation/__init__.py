"""Validation and normalization of specs and requests, shared by all processes so that their messages are the same.

Every function yields FieldErrors with the path of the field in the caller's document; the parameter `at` or `path` is
the path of the validated part. Nothing here raises an exception for invalid input. A caller raises `Invalid` with the
errors.
"""

from gpu_runtime.contract.validation.field_error import FieldError
from gpu_runtime.contract.validation.normalize import normalize_pool, normalize_storage, normalize_unit
from gpu_runtime.contract.validation.specs import growth_errors, pool_errors, storage_errors, unit_errors
from gpu_runtime.contract.validation.values import name_errors, operation_id_errors

__all__ = [
    "FieldError",
    "growth_errors",
    "name_errors",
    "normalize_pool",
    "normalize_storage",
    "normalize_unit",
    "operation_id_errors",
    "pool_errors",
    "storage_errors",
    "unit_errors",
]
