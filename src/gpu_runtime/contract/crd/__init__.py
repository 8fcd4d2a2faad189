"""The resources of `runtime.lokiwager.io/v1alpha1`: models, names, conditions. Manifests are generated from here."""

from gpu_runtime.contract.crd import gpu_storage, gpu_unit, operation, stock_pool

DEFINITIONS = (gpu_unit.DEFINITION, gpu_storage.DEFINITION, stock_pool.DEFINITION, operation.DEFINITION)
