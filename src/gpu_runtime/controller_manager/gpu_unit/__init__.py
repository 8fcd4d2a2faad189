"""The GPUUnit controller: observes a unit, checks its rules, applies its children and writes its status.

`rules` checks the conditions for the Deployment of a unit: the spec is valid, and the storages are ready. `adoption`
makes a prepared pod the pod of the unit. `stock_releaser` ends the pod of a consumed stock unit if the unit waits for
its GPUs, and `stock_release` decides when the unit may preempt instead. `status` computes the phase and the Ready
condition.

The controller does not attach storages (see `gpu_storage`). It does not claim or create stock units, because the
runtime API does so.
"""
