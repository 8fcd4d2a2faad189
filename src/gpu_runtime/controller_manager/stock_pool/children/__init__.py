"""Children of a StockPool, computed from what was seen. Nothing here awaits."""

from gpu_runtime.controller_manager.stock_pool.children.pool_children import desired_children

__all__ = ["desired_children"]
