"""Manifests of the children of a GPUUnit, computed from an `ObservedUnit`. Nothing here reads, writes or awaits."""

from gpu_runtime.controller_manager.gpu_unit.children.deployment import deployment
from gpu_runtime.controller_manager.gpu_unit.children.unit_children import desired_children

__all__ = ["deployment", "desired_children"]
