"""The GPUStorage controller: attaches a storage to a unit, manages its PersistentVolumeClaim and writes its status.

- `attachment` decides to which unit the storage is attached.
- `finalize` decides when the PVC of a deleted storage may be deleted.
- `status` computes the phase and the Ready condition, which also reports a pending or refused resize.

The controller deletes data only when a user deletes the GPUStorage. It does not create volumes, because the provisioner
of the StorageClass creates them. It does not create the pods that mount the volumes (see `gpu_unit`).
"""
