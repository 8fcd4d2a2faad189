"""Reads the source stock unit of an active unit from the annotations that the runtime API wrote."""

from dataclasses import dataclass

from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.well_known import Annotation


@dataclass(frozen=True)
class SourceStockRef:
    """The stock unit whose GPUs the active unit uses after the handoff. The stock unit may already be deleted."""

    name: str
    namespace: str
    uid: str
    node: str
    """Name of the node of the stock unit's pod. Empty if the node was unknown at the handoff."""


def source_stock(unit: GPUUnit) -> SourceStockRef | None:
    annotations = unit.metadata.annotations
    if not annotations.get(Annotation.SOURCE_STOCK_UID):
        return None
    return SourceStockRef(
        name=annotations.get(Annotation.SOURCE_STOCK_NAME, ""),
        namespace=annotations.get(Annotation.SOURCE_STOCK_NAMESPACE, ""),
        uid=annotations[Annotation.SOURCE_STOCK_UID],
        node=annotations.get(Annotation.SOURCE_STOCK_NODE, ""),
    )
