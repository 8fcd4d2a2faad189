"""The StockPool resource: a Deployment of warm pods of one flavor.

If a pool is adoptable, a handoff can take one of its pods: the stock of the grade "prepared".
"""

from typing import Annotated, ClassVar

from gpu_runtime.contract.crd.conditions import UnitPhase
from gpu_runtime.contract.crd.gpu_unit import Access
from gpu_runtime.contract.crd.markers import (
    AGE_COLUMN,
    READY_REASON_COLUMN,
    ConditionList,
    CrdDefinition,
    PrinterColumn,
    immutable,
    openapi,
)
from gpu_runtime.contract.crd.pod_record import PodRecord
from gpu_runtime.contract.crd.probes import Probes
from gpu_runtime.contract.crd.reservation import Reservation
from gpu_runtime.contract.crd.template import Count, Image, SpecName, Template
from gpu_runtime.contract.crd.well_known import GROUP, MAX_POOL_NAME_LENGTH, VERSION
from gpu_runtime.kube.meta import ApiResource, KubeObject, KubeStruct


class StockPoolSpec(Reservation, frozen=True, kw_only=True):
    """The number of replicas, and what each replica reserves and runs."""

    RULES: ClassVar = (immutable("specName", "the flavor of a pool cannot change; create another pool"),)

    spec_name: SpecName
    """The flavor of the pool, for example g1.1."""

    image: Image = ""
    """The container image of every replica. If this field is empty, replicas run the image of the setting
    images.placeholder."""

    replicas: Count
    """The desired number of replicas. With 0, the pool has no pods."""

    template: Template = Template()
    """How the container runs the image. If both command and args are empty, the container runs a
    process that only sleeps."""

    adoptable: bool = False
    """Whether a create request may take a pod of the pool: the running pod becomes the pod of the new unit, and the
    pool starts another pod. The request must have the specName, image, template, access and probes of the pool, and
    the namespace of the pool. Pods of an adoptable pool have the priority of units, so units do not preempt them.
    Defaults to false."""

    access: Access | None = None
    """How clients reach the units that the pods become. Only for adoptable pools."""

    probes: Probes | None = None
    """How Kubernetes checks the program. If readiness is omitted, the pods have the readiness probe that the API adds
    to a unit. Only for adoptable pools."""


class StockPoolStatus(KubeStruct, frozen=True, kw_only=True):
    """The observed state of the pool."""

    available: Count = 0
    """The number of available replicas."""

    allocated: Count = 0
    """The number of replicas that are desired but not available."""

    phase: Annotated[str, openapi(enum=[phase.value for phase in UnitPhase])] | None = None
    """Empty (replicas is 0), Progressing, Ready or Failed. The Ready condition contains the reason."""

    service_name: str | None = None
    """The name of the Service of the pool. The field is absent if the template has no ports."""

    observed_generation: Annotated[int, openapi(format="int64")] = 0
    """The generation of the spec that this status describes."""

    last_sync_time: Annotated[str, openapi(format="date-time")] | None = None
    """The time of the last change of this status."""

    pod: PodRecord | None = None
    """How the platform built the pods of the pool."""

    conditions: ConditionList = ()
    """The Ready condition, with a reason for programs and a message for people."""


class StockPool(KubeObject, frozen=True, kw_only=True):
    """Warm pods of one flavor. The pods reserve GPUs and belong to the Deployment `pool-<name>`. If the template has
    ports, the pool also has a Service. If the pool is adoptable, a create request can take one of its pods."""

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
