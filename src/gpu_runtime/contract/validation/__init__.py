"""Validation and normalization of specs and requests. All processes use it, so that their error messages are the same.

Each validation function yields FieldErrors, and each FieldError has the path of the field in the caller's document. The
parameter `at` or `path` is the path of the validated part. No function here raises an exception for invalid input: the
calling code raises `Invalid` with the errors, for example with `require_valid`.
"""

from gpu_runtime.contract.validation.field_error import FieldError
from gpu_runtime.contract.validation.normalize import normalize_pool, normalize_storage, normalize_unit
from gpu_runtime.contract.validation.specs import growth_errors, pool_errors, storage_errors, unit_errors
from gpu_runtime.contract.validation.values import name_errors, namespace_errors, operation_id_errors

__all__ = [
    "FieldError",
    "growth_errors",
    "name_errors",
    "namespace_errors",
    "normalize_pool",
    "normalize_storage",
    "normalize_unit",
    "operation_id_errors",
    "pool_errors",
    "storage_errors",
    "unit_errors",
]
