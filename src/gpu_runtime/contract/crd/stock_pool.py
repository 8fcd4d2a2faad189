"""StockPool: warm capacity of one flavour as one Deployment, the operators' API before stock became GPUUnits."""

from typing import Annotated, ClassVar

from gpu_runtime.contract.crd.conditions import UnitPhase
from gpu_runtime.contract.crd.markers import AGE, READY_REASON, Column, Definition, held, never_changes
from gpu_runtime.contract.crd.template import Count, Image, Quantity, SpecName, Template
from gpu_runtime.contract.crd.well_known import GROUP, POOL_NAME_LIMIT, VERSION
from gpu_runtime.kube.meta import Condition, Object, Resource, Wire


class StockPoolSpec(Wire, frozen=True, kw_only=True):
    """What each replica of the pool reserves and runs, and how many there are to be."""

    RULES: ClassVar = (never_changes("specName", "a pool of another flavour is another pool"),)

    spec_name: SpecName
    """The flavour of the pool's capacity, for example g1.1."""

    image: Image = ""
    """The image that every replica runs. Empty: the platform's placeholder."""

    memory: Quantity = ""
    """The memory that each replica reserves and may not exceed, for example 16Gi. Empty: no reservation, no limit."""

    gpu: Count = 0
    """How many GPUs each replica holds (nvidia.com/gpu)."""

    replicas: Count
    """How many replicas there are to be. 0 keeps the pool without capacity."""

    template: Template = Template()
    """How the image is run. Without command and args, a replica only sleeps."""


class StockPoolStatus(Wire, frozen=True, kw_only=True):
    """What is true of the pool."""

    available: Count = 0
    """Replicas that are available."""

    allocated: Count = 0
    """Replicas that are wanted and not available."""

    phase: Annotated[str, held(enum=[phase.value for phase in UnitPhase])] | None = None
    """Empty (no replicas wanted), Progressing, Ready or Failed. The Ready condition says why."""

    service_name: str | None = None
    """The Service in front of the replicas, where the template has ports."""

    observed_generation: Annotated[int, held(format="int64")] = 0
    """The generation of the spec that this status speaks of."""

    last_sync_time: Annotated[str, held(format="date-time")] | None = None
    """When this status last changed."""

    conditions: tuple[Condition, ...] = ()
    """The Ready condition, with its reason and a message for the operator."""


class StockPool(Object, frozen=True, kw_only=True):
    """Warm capacity of one flavour: a Deployment pool-<name> that holds GPUs, and a Service where it has ports."""

    spec: StockPoolSpec
    status: StockPoolStatus = StockPoolStatus()


STOCK_POOLS = Resource(GROUP, VERSION, "StockPool", "stockpools", StockPool)

DEFINITION = Definition(
    STOCK_POOLS,
    short_names=("sp",),
    columns=(
        Column("Spec", ".spec.specName"),
        Column("Desired", ".spec.replicas", "integer"),
        Column("Available", ".status.available", "integer"),
        Column("Phase", ".status.phase"),
        READY_REASON,
        AGE,
    ),
    name_limit=POOL_NAME_LIMIT,
)
