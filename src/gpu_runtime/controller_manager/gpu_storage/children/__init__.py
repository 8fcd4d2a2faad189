"""Manifest and patches of the PersistentVolumeClaim of a GPUStorage. Nothing here reads, writes or awaits."""

from gpu_runtime.controller_manager.gpu_storage.children.pvc import (
    expansion_patch,
    is_pvc_of,
    metadata_patch,
    pvc_manifest,
)

__all__ = ["expansion_patch", "is_pvc_of", "metadata_patch", "pvc_manifest"]
