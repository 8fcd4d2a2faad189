"""What operators ask of stock and pools.

The limits stand here for the document alone: `admission` holds them, with a sentence for each.
"""

from typing import Annotated

from msgspec import UNSET, UnsetType, field

from gpu_runtime.contract.crd.conditions import UnitPhase
from gpu_runtime.contract.crd.gpu_unit import GPUUnitSpec
from gpu_runtime.contract.crd.markers import openapi
from gpu_runtime.contract.crd.operation import MAX_STOCK_PER_OPERATION, OperationID
from gpu_runtime.contract.crd.stock_pool import StockPoolSpec
from gpu_runtime.contract.crd.template import Count, Image, QuantityString, SpecName, Template
from gpu_runtime.contract.crd.well_known import MAX_POOL_NAME_LENGTH, NAME_PATTERN
from gpu_runtime.runtime_api.http.paging import PagedQuery
from gpu_runtime.runtime_api.http.route import Body, Query


class CreateStockPool(Body, frozen=True, kw_only=True):
    """A pool of warm capacity: so many replicas of one image, each with its GPUs."""

    operation_id: OperationID = field(name="operationID")
    """The caller's name for this operation. The same request under the same name is carried out once."""

    name: Annotated[str, openapi(pattern=NAME_PATTERN, maxLength=MAX_POOL_NAME_LENGTH)] = ""
    """The pool's name, at most 58 characters. Default: derived from the operationID."""

    namespace: str = ""
    """Where the pool is made. Default: the first namespace that the configuration allows."""

    spec_name: SpecName
    """The flavor of the capacity, for example g1.1."""

    image: Image = ""
    """The image that every replica runs. Default: the platform's placeholder."""

    memory: QuantityString = ""
    """The memory that each replica reserves and may not exceed, for example 16Gi. Default: no reservation."""

    gpu: Count = 0
    """How many GPUs each replica holds."""

    replicas: Count
    """How many replicas there are to be. 0 keeps the pool without capacity."""

    template: Template = Template()
    """How the image is run. Without command and args, a replica only sleeps."""

    def spec(self) -> StockPoolSpec:
        return StockPoolSpec(
            spec_name=self.spec_name,
            image=self.image,
            memory=self.memory,
            gpu=self.gpu,
            replicas=self.replicas,
            template=self.template,
        )


class SeedStock(Body, frozen=True, kw_only=True):
    """Stock units: reservations that hold their GPUs until a unit is made from them. What runs comes with the unit."""

    operation_id: OperationID = field(name="operationID")
    """The caller's name for this operation. The same request under the same name is carried out once."""

    spec_name: SpecName
    """The flavor, for example g1.1: a unit of this flavor takes such stock."""

    memory: QuantityString = ""
    """The memory that each stock unit reserves, for example 16Gi. Default: no reservation."""

    gpu: Count = 0
    """How many GPUs each stock unit holds."""

    replicas: Annotated[int, openapi(format="int32", minimum=1, maximum=MAX_STOCK_PER_OPERATION)]
    """How many stock units are made, 1 to 1000. All of them, or none."""

    def spec(self) -> GPUUnitSpec:
        return GPUUnitSpec(spec_name=self.spec_name, memory=self.memory, gpu=self.gpu)


class ListPools(PagedQuery, frozen=True, kw_only=True):
    namespace: str = ""
    """Only pools of this namespace."""

    spec_name: str = ""
    """Only pools of this flavor."""

    phase: UnitPhase | UnsetType = UNSET
    """Only pools in this phase."""


class PoolQuery(Query, frozen=True, kw_only=True):
    namespace: str = ""
    """Where the pool is. Default: the first namespace that the configuration allows."""


class ListStock(PagedQuery, frozen=True, kw_only=True):
    spec_name: str = ""
    """Only stock of this flavor."""

    phase: UnitPhase | UnsetType = UNSET
    """Only stock in this phase."""

    claimed: bool | UnsetType = UNSET
    """true: only stock that is being turned into a unit; false: only other stock."""


class InventoryQuery(Query, frozen=True, kw_only=True):
    spec_name: str = ""
    """Only this flavor."""
