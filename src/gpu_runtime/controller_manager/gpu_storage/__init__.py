"""The GPUStorage controller: attaches a storage to a unit, manages its PersistentVolumeClaim and writes its status.

`attachment` decides which unit holds the storage, `finalize` when its PVC may be deleted, and `status` the phase and
the Ready condition, including a pending or refused resize.

It deletes data only when a user deletes the GPUStorage. It does not create volumes (the provisioner of the
StorageClass does), and it does not create the pods that mount them (see `gpu_unit`).
"""
