"""Pools and stock units as operators see them. Pure."""

from msgspec import field

from gpu_runtime.contract.crd.conditions import READY_CONDITION, UnitPhase, find_condition
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.stock_pool import StockPool
from gpu_runtime.contract.crd.template import Template
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.runtime_api.http.route import View


class PoolView(View, frozen=True, kw_only=True):
    """A pool of warm capacity."""

    name: str
    """The pool's name. Its Deployment and its Service are called pool-<name>."""

    namespace: str
    """Where the pool is."""

    spec_name: str
    """The flavor of its capacity."""

    image: str
    """The image that every replica runs. Empty: the platform's placeholder."""

    memory: str
    """The memory that each replica reserves. Empty: no reservation."""

    gpu: int
    """How many GPUs each replica holds."""

    replicas: int
    """How many replicas there are to be."""

    template: Template
    """How the image is run."""

    phase: UnitPhase
    """Empty (no replicas wanted), Progressing, Ready or Failed."""

    reason: str
    """Why, as one word for programs. Empty until it was looked at first."""

    message: str
    """Why, as a sentence for people."""

    available: int
    """Replicas that are available."""

    allocated: int
    """Replicas that are wanted and not available."""

    service_name: str | None = None
    """The Service in front of the replicas, where the template has ports."""

    observed_generation: int
    """The generation that the state speaks of. Below generation: the last change has not been looked at yet."""

    generation: int
    """Counts the changes of what was asked."""

    operation_id: str | None = field(default=None, name="operationID")
    """The operation that made it."""

    created_at: str | None = None
    """When it was made."""

    deleting: bool
    """Whether its end was asked for."""


class StockUnitView(View, frozen=True, kw_only=True):
    """A stock unit: a reservation that a unit can be made from."""

    name: str
    """The stock unit's name."""

    namespace: str
    """Where it is."""

    spec_name: str
    """The flavor."""

    memory: str
    """The memory that it reserves. Empty: no reservation."""

    gpu: int
    """How many GPUs it holds."""

    phase: UnitPhase
    """Empty (stopped), Progressing, Ready or Failed."""

    reason: str
    """Why, as one word for programs. Empty until it was looked at first."""

    message: str
    """Why, as a sentence for people."""

    node: str | None = None
    """The node where it holds its GPUs."""

    claimed_by: str | None = None
    """The operation that is turning it into a unit."""

    operation_id: str | None = field(default=None, name="operationID")
    """The operation that seeded it."""

    created_at: str | None = None
    """When it was made."""


def pool_view(pool: StockPool) -> PoolView:
    about, spec, status = pool.metadata, pool.spec, pool.status
    reason, message = _reason_and_message(pool)
    return PoolView(
        name=about.name,
        namespace=about.namespace,
        spec_name=spec.spec_name,
        image=spec.image,
        memory=spec.memory,
        gpu=spec.gpu,
        replicas=spec.replicas,
        template=spec.template,
        phase=phase_of(pool),
        reason=reason,
        message=message,
        available=status.available,
        allocated=status.allocated,
        service_name=status.service_name,
        observed_generation=status.observed_generation,
        generation=about.generation,
        operation_id=about.annotations.get(Annotation.OPERATION_ID),
        created_at=about.creation_timestamp,
        deleting=about.deletion_timestamp is not None,
    )


def stock_unit_view(unit: GPUUnit, node: str = "") -> StockUnitView:
    about, spec = unit.metadata, unit.spec
    reason, message = _reason_and_message(unit)
    return StockUnitView(
        name=about.name,
        namespace=about.namespace,
        spec_name=spec.spec_name,
        memory=spec.memory,
        gpu=spec.gpu,
        phase=phase_of(unit),
        reason=reason,
        message=message,
        node=node or None,
        claimed_by=about.annotations.get(Annotation.CLAIMED_BY),
        operation_id=about.annotations.get(Annotation.OPERATION_ID),
        created_at=about.creation_timestamp,
    )


def phase_of(found: GPUUnit | StockPool) -> UnitPhase:
    """What nobody has looked at yet is on its way."""
    return UnitPhase(found.status.phase or UnitPhase.PROGRESSING)


def _reason_and_message(found: GPUUnit | StockPool) -> tuple[str, str]:
    ready = find_condition(found.status.conditions, READY_CONDITION)
    return (ready.reason, ready.message) if ready else ("", "")
