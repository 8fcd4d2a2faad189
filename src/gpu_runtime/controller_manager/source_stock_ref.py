"""Reads the source stock of an active unit from the annotations that the runtime API wrote."""

from dataclasses import dataclass

from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.contract.stock_grades import StockGrade


@dataclass(frozen=True)
class SourceStockRef:
    """The stock unit or prepared pod whose GPUs the active unit uses after the handoff. It may already be deleted."""

    name: str
    namespace: str
    uid: str
    node: str
    """Name of the node of the stock unit's pod. Empty if the node was unknown at the handoff."""
    pool: str = ""
    """Name of the StockPool, if the handoff took a prepared pod. Then name, namespace and uid are those of the pod."""
    missed: str = ""
    """Why the handoff took no prepared pod."""


def source_stock(unit: GPUUnit) -> SourceStockRef | None:
    annotations = unit.metadata.annotations
    if not annotations.get(Annotation.SOURCE_STOCK_UID):
        return None
    return SourceStockRef(
        name=annotations.get(Annotation.SOURCE_STOCK_NAME, ""),
        namespace=annotations.get(Annotation.SOURCE_STOCK_NAMESPACE, ""),
        uid=annotations[Annotation.SOURCE_STOCK_UID],
        node=annotations.get(Annotation.SOURCE_STOCK_NODE, ""),
        pool=annotations.get(Annotation.SOURCE_STOCK_POOL, ""),
        missed=annotations.get(Annotation.SOURCE_STOCK_MISSED, ""),
    )


def describe_source(stock: SourceStockRef) -> str:
    """Return the text of the Event that says which stock became the unit."""
    if stock.pool:
        return f"created from pod {stock.name} of pool {stock.pool} (grade {StockGrade.PREPARED})"
    missed = f"; no {StockGrade.PREPARED} pod was used: {stock.missed}" if stock.missed else ""
    return f"created from stock unit {stock.name} (grade {StockGrade.RESERVED}){missed}"
