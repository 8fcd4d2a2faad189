"""What is wrong with a spec or a request, field by field, in the same words for every process that refuses it.

A problem names the field by its path in the caller's own document, so every function takes the path it starts `at`.
Nothing here raises for bad input; `Invalid` carries the problems where a caller wants to.
"""

from gpu_runtime.contract.validation.field_error import Problem
from gpu_runtime.contract.validation.normalize import normalised_pool, normalised_storage, normalised_unit
from gpu_runtime.contract.validation.specs import growth_problems, pool_problems, storage_problems, unit_problems
from gpu_runtime.contract.validation.values import name_problems, operation_id_problems

__all__ = [
    "Problem",
    "growth_problems",
    "name_problems",
    "normalised_pool",
    "normalised_storage",
    "normalised_unit",
    "operation_id_problems",
    "pool_problems",
    "storage_problems",
    "unit_problems",
]
