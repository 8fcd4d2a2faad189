"""The stock that an active unit was made from, as its annotations tell."""

from dataclasses import dataclass

from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.well_known import Annotation


@dataclass(frozen=True)
class SourceStockRef:
    name: str
    namespace: str
    uid: str
    node: str
    """Where it held its GPUs, if that was known."""


def source_stock(unit: GPUUnit) -> SourceStockRef | None:
    said = unit.metadata.annotations
    if not said.get(Annotation.SOURCE_STOCK_UID):
        return None
    return SourceStockRef(
        name=said.get(Annotation.SOURCE_STOCK_NAME, ""),
        namespace=said.get(Annotation.SOURCE_STOCK_NAMESPACE, ""),
        uid=said[Annotation.SOURCE_STOCK_UID],
        node=said.get(Annotation.SOURCE_STOCK_NODE, ""),
    )
