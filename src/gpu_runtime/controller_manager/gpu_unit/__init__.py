"""The GPUUnit controller: observes a unit, checks its rules, applies its children and writes its status.

`rules` checks the conditions for the Deployment of a unit: the spec is valid, the storages are ready, and the pod of
the consumed stock unit is deleted. `status` computes the phase and the Ready condition.

The controller does not attach storages (see `gpu_storage`). It does not claim or create stock units, because the
runtime API does so.
"""
