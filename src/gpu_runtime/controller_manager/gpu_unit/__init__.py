"""The GPUUnit controller: observes a unit, checks its rules, applies its children and writes its status.

`rules` decides what a unit waits for before it gets its Deployment: a valid spec, its storages, and the pod of the
consumed stock unit. `status` derives phase and Ready condition.

It does not attach storages (see `gpu_storage`), and it does not claim or create stock units (the API does).
"""
