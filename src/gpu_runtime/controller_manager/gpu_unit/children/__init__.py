"""Children of a GPUUnit, computed from what was seen. Nothing here awaits."""

from gpu_runtime.controller_manager.gpu_unit.children.unit_children import desired_children

__all__ = ["desired_children"]
