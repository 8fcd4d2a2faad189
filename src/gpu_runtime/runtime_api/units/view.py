"""A unit as callers see it: what was asked, what is true, and where it came from. Pure."""

from msgspec import field

from gpu_runtime.contract.crd.conditions import READY_CONDITION, UnitPhase, find_condition
from gpu_runtime.contract.crd.gpu_unit import Access, GPUUnit, Serverless, StorageMount
from gpu_runtime.contract.crd.template import Template
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.runtime_api.condition_view import ConditionView, condition_view
from gpu_runtime.runtime_api.http.route import View


class SourceStockView(View, frozen=True, kw_only=True):
    """The stock unit that became this unit. It no longer exists."""

    name: str
    """The stock unit's name."""

    namespace: str
    """The stock unit's namespace."""

    uid: str
    """The stock unit's UID."""


class UnitView(View, frozen=True, kw_only=True):
    """An active unit."""

    name: str
    """The unit's name, and its Service's."""

    namespace: str
    """Where the unit is."""

    spec_name: str
    """The flavor, for example g1.1."""

    image: str
    """The image that it runs."""

    memory: str
    """The memory that it reserves and may not exceed. Empty: no reservation, no limit."""

    gpu: int
    """How many GPUs it holds."""

    template: Template
    """How the image is run."""

    access: Access | None = None
    """How the unit is reached."""

    storage_mounts: tuple[StorageMount, ...]
    """Storages of the same namespace that are mounted into the container."""

    serverless: Serverless | None = None
    """What makes the unit a function."""

    running: bool
    """Whether the unit is meant to have a pod: false after stop, until start."""

    phase: UnitPhase
    """Empty (stopped), Progressing, Ready or Failed."""

    ready: bool
    """Whether the unit serves."""

    reason: str
    """Why it is ready or not, as one word for programs. Empty until it was looked at first."""

    message: str
    """Why it is ready or not, as a sentence for people."""

    ready_replicas: int
    """How many of its pods are ready: 0 or 1."""

    service_name: str | None = None
    """The Service in front of it."""

    access_url: str | None = field(default=None, name="accessURL")
    """Where it answers inside the cluster."""

    conditions: tuple[ConditionView, ...]
    """Every aspect of its state. The one named Ready is told by ready, reason and message."""

    observed_generation: int
    """The generation that phase, ready and the rest of the state speak of. Below generation: the last change has not
    been looked at yet."""

    generation: int
    """Counts the changes of what was asked."""

    created_at: str | None = None
    """When it was made."""

    deleting: bool
    """Whether its end was asked for."""

    operation_id: str | None = field(default=None, name="operationID")
    """The operation that made it."""

    source_stock: SourceStockView | None = None
    """The stock unit that it was made from."""


def unit_view(unit: GPUUnit) -> UnitView:
    about, spec, status = unit.metadata, unit.spec, unit.status
    ready = find_condition(status.conditions, READY_CONDITION)
    return UnitView(
        name=about.name,
        namespace=about.namespace,
        spec_name=spec.spec_name,
        image=spec.image,
        memory=spec.memory,
        gpu=spec.gpu,
        template=spec.template,
        access=spec.access,
        storage_mounts=spec.storage_mounts,
        serverless=spec.serverless,
        running=spec.running,
        phase=phase_of(unit),
        ready=ready is not None and ready.status == "True",
        reason=ready.reason if ready else "",
        message=ready.message if ready else "",
        ready_replicas=status.ready_replicas,
        service_name=status.service_name,
        access_url=status.access_url,
        conditions=tuple(map(condition_view, status.conditions)),
        observed_generation=status.observed_generation,
        generation=about.generation,
        created_at=about.creation_timestamp,
        deleting=about.deletion_timestamp is not None,
        operation_id=about.annotations.get(Annotation.OPERATION_ID),
        source_stock=_source_stock(about.annotations),
    )


def phase_of(unit: GPUUnit) -> UnitPhase:
    """A unit that nobody has looked at yet is on its way. So is one in a phase that only a later version knows."""
    return _PHASES.get(unit.status.phase or "", UnitPhase.PROGRESSING)


_PHASES = {phase.value: phase for phase in UnitPhase}


def _source_stock(annotations: dict[str, str]) -> SourceStockView | None:
    name = annotations.get(Annotation.SOURCE_STOCK_NAME)
    if not name:
        return None
    return SourceStockView(
        name=name,
        namespace=annotations.get(Annotation.SOURCE_STOCK_NAMESPACE, ""),
        uid=annotations.get(Annotation.SOURCE_STOCK_UID, ""),
    )
