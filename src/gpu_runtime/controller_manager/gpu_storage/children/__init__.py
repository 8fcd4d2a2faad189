"""The child of a GPUStorage, computed from what was seen. Nothing here awaits."""

from gpu_runtime.controller_manager.gpu_storage.children.pvc import claim, corrected, growth, is_ours

__all__ = ["claim", "corrected", "growth", "is_ours"]
