"""What operators ask of stock and pools."""

from msgspec import UNSET, UnsetType, field

from gpu_runtime.contract.crd.conditions import UnitPhase
from gpu_runtime.contract.crd.gpu_unit import GPUUnitSpec
from gpu_runtime.contract.crd.stock_pool import StockPoolSpec
from gpu_runtime.contract.crd.workload import Template
from gpu_runtime.runtime_api.http.paging import Paged
from gpu_runtime.runtime_api.http.route import Body, Query


class CreateStockPool(Body, frozen=True, kw_only=True):
    """A pool of warm capacity: so many replicas of one image, each with its GPUs."""

    operation_id: str = field(name="operationID")
    """The caller's name for this operation. The same request under the same name is carried out once."""

    name: str = ""
    """The pool's name, at most 58 characters. Default: derived from the operationID."""

    namespace: str = ""
    """Where the pool is made. Default: the first namespace that the configuration allows."""

    spec_name: str
    """The flavour of the capacity, for example g1.1."""

    image: str = ""
    """The image that every replica runs. Default: the platform's placeholder."""

    memory: str = ""
    """The memory that each replica reserves and may not exceed, for example 16Gi. Default: no reservation."""

    gpu: int = 0
    """How many GPUs each replica holds."""

    replicas: int
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

    operation_id: str = field(name="operationID")
    """The caller's name for this operation. The same request under the same name is carried out once."""

    spec_name: str
    """The flavour, for example g1.1: a unit of this flavour takes such stock."""

    memory: str = ""
    """The memory that each stock unit reserves, for example 16Gi. Default: no reservation."""

    gpu: int = 0
    """How many GPUs each stock unit holds."""

    replicas: int
    """How many stock units are made, 1 to 1000. All of them, or none."""

    def spec(self) -> GPUUnitSpec:
        return GPUUnitSpec(spec_name=self.spec_name, memory=self.memory, gpu=self.gpu)


class ListPools(Paged, frozen=True, kw_only=True):
    namespace: str = ""
    """Only pools of this namespace."""

    spec_name: str = ""
    """Only pools of this flavour."""

    phase: UnitPhase | UnsetType = UNSET
    """Only pools in this phase."""


class WhichPool(Query, frozen=True, kw_only=True):
    namespace: str = ""
    """Where the pool is. Default: the first namespace that the configuration allows."""


class ListStock(Paged, frozen=True, kw_only=True):
    spec_name: str = ""
    """Only stock of this flavour."""

    phase: UnitPhase | UnsetType = UNSET
    """Only stock in this phase."""

    claimed: bool | UnsetType = UNSET
    """true: only stock that is being turned into a unit; false: only other stock."""


class AskInventory(Query, frozen=True, kw_only=True):
    spec_name: str = ""
    """Only this flavour."""
