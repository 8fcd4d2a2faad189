"""The GPUStorage controller: attaches a storage to a unit, manages its PersistentVolumeClaim and writes its status.

It deletes data only when a user deletes the GPUStorage. It does not create volumes (the provisioner of the
StorageClass does), and it does not create the pods that mount them (see `gpu_unit`).
"""
