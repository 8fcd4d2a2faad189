"""Converts stock pools and stock units into the JSON views of the API. Pure functions."""

from msgspec import field, structs

from gpu_runtime.contract.crd.conditions import UnitPhase, current_ready_condition, known_phase
from gpu_runtime.contract.crd.gpu_unit import Access, GPUUnit
from gpu_runtime.contract.crd.probes import Probes
from gpu_runtime.contract.crd.reservation import reservation_fields
from gpu_runtime.contract.crd.stock_pool import StockPool
from gpu_runtime.contract.crd.template import Template
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.runtime_api.http.route import View
from gpu_runtime.runtime_api.object_view import common_fields


class PoolView(View, frozen=True, kw_only=True):
    """A pool of warm capacity."""

    name: str
    """The name of the pool. Its Deployment and its Service have the name pool-<name>."""

    namespace: str
    """The namespace of the pool."""

    spec_name: str
    """The flavor, for example g1.1."""

    image: str
    """The container image of every replica. If empty, replicas run the placeholder image of the platform."""

    memory: str
    """The memory reservation of each replica. Empty if there is no reservation."""

    gpu: int
    """The number of GPUs of each replica."""

    cpu: str
    """The reserved CPUs. Empty if there is no reservation."""

    cpu_limit: str
    """The CPU limit. Empty if there is no limit."""

    ephemeral_storage: str
    """The disk space for logs and for files that are not in a storage. Empty if the default of the platform applies."""

    replicas: int
    """The desired number of replicas."""

    template: Template
    """Command, arguments, environment variables and ports of the container."""

    adoptable: bool
    """Whether a create request may take a replica."""

    prepared: int
    """The number of replicas that a create request can take now. 0 if the pool is not adoptable."""

    access: Access | None = None
    """The port and the scheme of the units that the replicas become."""

    probes: Probes | None = None
    """How Kubernetes checks the program of an adoptable pool."""

    phase: UnitPhase
    """Empty (no replicas desired), Progressing, Ready or Failed."""

    reason: str
    """Why the pool is in this phase, as a code for programs. Empty before the first reconcile."""

    message: str
    """Why the pool is in this phase, as a text for people."""

    available: int
    """The number of available replicas."""

    allocated: int
    """The number of desired replicas that are not available."""

    service_name: str | None = None
    """The name of the Service of the replicas, if the template has ports."""

    observed_generation: int
    """The generation that the status describes. If it is lower than generation, the controller has not processed the
    last change."""

    generation: int
    """The number of the current version of the spec. Every change of the spec increases it."""

    operation_id: str | None = field(default=None, name="operationID")
    """The operation that created the pool."""

    created_at: str | None = None
    """When the pool was created."""

    deleting: bool
    """Whether the pool is being deleted."""


class StockUnitView(View, frozen=True, kw_only=True):
    """A stock unit: a reservation that can become a unit."""

    name: str
    """The name of the stock unit."""

    namespace: str
    """The namespace of the stock unit."""

    spec_name: str
    """The flavor, for example g1.1."""

    memory: str
    """The memory reservation. Empty if there is no reservation."""

    gpu: int
    """The number of reserved GPUs."""

    cpu: str
    """The reserved CPUs. Empty if there is no reservation."""

    cpu_limit: str
    """The CPU limit. Empty if there is no limit."""

    ephemeral_storage: str
    """The disk space for logs and for files that are not in a storage. Empty if the default of the platform applies."""

    phase: UnitPhase
    """Empty (stopped), Progressing, Ready or Failed."""

    reason: str
    """Why the stock unit is in this phase, as a code for programs. Empty before the first reconcile."""

    message: str
    """Why the stock unit is in this phase, as a text for people."""

    node: str | None = None
    """The node whose GPUs the stock unit reserves."""

    claimed_by: str | None = None
    """The operation that has claimed the stock unit."""

    operation_id: str | None = field(default=None, name="operationID")
    """The operation that seeded the stock unit."""

    created_at: str | None = None
    """When the stock unit was created."""


def pool_view(pool: StockPool, prepared: int = 0) -> PoolView:
    """Return the view. It has every field of the spec. `prepared` is the number of pods that a handoff can take."""
    metadata, status = pool.metadata, pool.status
    return PoolView(
        **common_fields(pool),
        **structs.asdict(pool.spec),
        phase=phase_of(pool),
        available=status.available,
        allocated=status.allocated,
        prepared=prepared,
        service_name=status.service_name,
        operation_id=metadata.annotations.get(Annotation.OPERATION_ID),
    )


def stock_unit_view(unit: GPUUnit, node: str = "") -> StockUnitView:
    metadata, spec, ready = unit.metadata, unit.spec, current_ready_condition(unit.status.conditions)
    return StockUnitView(
        name=metadata.name,
        namespace=metadata.namespace,
        spec_name=spec.spec_name,
        **reservation_fields(spec),
        phase=phase_of(unit),
        reason=ready.reason,
        message=ready.message,
        node=node or None,
        claimed_by=metadata.annotations.get(Annotation.CLAIMED_BY),
        operation_id=metadata.annotations.get(Annotation.OPERATION_ID),
        created_at=metadata.creation_timestamp,
    )


def phase_of(resource: GPUUnit | StockPool) -> UnitPhase:
    """Return the phase. It is Progressing before the first reconcile."""
    return known_phase(resource.status.phase, UnitPhase.PROGRESSING)
