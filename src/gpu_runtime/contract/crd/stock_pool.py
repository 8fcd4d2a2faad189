"""StockPool: warm capacity of one flavor as one Deployment, the operators' API before stock became GPUUnits."""

from typing import Annotated, ClassVar

from gpu_runtime.contract.crd.conditions import UnitPhase
from gpu_runtime.contract.crd.markers import (
    AGE_COLUMN,
    READY_REASON_COLUMN,
    CrdDefinition,
    PrinterColumn,
    immutable,
    openapi,
)
from gpu_runtime.contract.crd.template import Count, Image, QuantityString, SpecName, Template
from gpu_runtime.contract.crd.well_known import GROUP, MAX_POOL_NAME_LENGTH, VERSION
from gpu_runtime.kube.meta import ApiResource, Condition, KubeObject, KubeStruct


class StockPoolSpec(KubeStruct, frozen=True, kw_only=True):
    """What each replica of the pool reserves and runs, and how many there are to be."""

    RULES: ClassVar = (immutable("specName", "a pool of another flavor is another pool"),)

    spec_name: SpecName
    """The flavor of the pool's capacity, for example g1.1."""

    image: Image = ""
    """The image that every replica runs. Empty: the platform's placeholder."""

    memory: QuantityString = ""
    """The memory that each replica reserves and may not exceed, for example 16Gi. Empty: no reservation, no limit."""

    gpu: Count = 0
    """How many GPUs each replica holds (nvidia.com/gpu)."""

    replicas: Count
    """How many replicas there are to be. 0 keeps the pool without capacity."""

    template: Template = Template()
    """How the image is run. Without command and args, a replica only sleeps."""


class StockPoolStatus(KubeStruct, frozen=True, kw_only=True):
    """What is true of the pool."""

    available: Count = 0
    """Replicas that are available."""

    allocated: Count = 0
    """Replicas that are wanted and not available."""

    phase: Annotated[str, openapi(enum=[phase.value for phase in UnitPhase])] | None = None
    """Empty (no replicas wanted), Progressing, Ready or Failed. The Ready condition says why."""

    service_name: str | None = None
    """The Service in front of the replicas, where the template has ports."""

    observed_generation: Annotated[int, openapi(format="int64")] = 0
    """The generation of the spec that this status speaks of."""

    last_sync_time: Annotated[str, openapi(format="date-time")] | None = None
    """When this status last changed."""

    conditions: tuple[Condition, ...] = ()
    """The Ready condition, with its reason and a message for the operator."""


class StockPool(KubeObject, frozen=True, kw_only=True):
    """Warm capacity of one flavor: a Deployment pool-<name> that holds GPUs, and a Service where it has ports."""

    spec: StockPoolSpec
    status: StockPoolStatus = StockPoolStatus()


STOCK_POOLS = ApiResource(GROUP, VERSION, "StockPool", "stockpools", StockPool)

DEFINITION = CrdDefinition(
    STOCK_POOLS,
    short_names=("sp",),
    printer_columns=(
        PrinterColumn("Spec", ".spec.specName"),
        PrinterColumn("Desired", ".spec.replicas", "integer"),
        PrinterColumn("Available", ".status.available", "integer"),
        PrinterColumn("Phase", ".status.phase"),
        READY_REASON_COLUMN,
        AGE_COLUMN,
    ),
    max_name_length=MAX_POOL_NAME_LENGTH,
)
