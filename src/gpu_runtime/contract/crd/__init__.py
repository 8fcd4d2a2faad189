"""The custom resources of `runtime.lokiwager.io/v1alpha1`: models, names of labels and children, conditions.

`make manifests` generates the CRDs from these models. Field docstrings become the descriptions of the fields.
"""

from gpu_runtime.contract.crd import function_queue, gpu_storage, gpu_unit, operation, stock_pool

DEFINITIONS = (
    gpu_unit.DEFINITION,
    gpu_storage.DEFINITION,
    stock_pool.DEFINITION,
    operation.DEFINITION,
    function_queue.DEFINITION,
)
