"""The GPUUnit controller: observes a unit, checks its rules, applies its children and writes its status.

It does not attach storages (see `gpu_storage`), and it does not claim or create stock units (the API does).
"""
