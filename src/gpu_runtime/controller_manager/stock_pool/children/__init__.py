"""Manifests of the children of a StockPool, computed from an `ObservedPool`. Nothing here reads, writes or awaits."""

from gpu_runtime.controller_manager.stock_pool.children.pool_children import desired_children

__all__ = ["desired_children"]
