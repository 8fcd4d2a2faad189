"""What is wrong with a spec or a request, field by field, in the same words for every process that refuses it.

A problem names the field by its path in the caller's own document, so every function takes the path it starts `at`.
Nothing here raises for bad input; `Invalid` carries the problems where a caller wants to.
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
