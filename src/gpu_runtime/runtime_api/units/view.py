"""Converts a GPUUnit into the JSON view of the API: its spec, its status and its source stock. Pure functions."""

from msgspec import field, structs

from gpu_runtime.contract.crd.conditions import UnitPhase, known_phase
from gpu_runtime.contract.crd.gpu_unit import Access, GPUUnit, LifetimeSeconds, Serverless, StorageMount
from gpu_runtime.contract.crd.probes import Probes
from gpu_runtime.contract.crd.template import Template
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.contract.stock_grades import StockGrade
from gpu_runtime.runtime_api.http.route import View
from gpu_runtime.runtime_api.object_view import ConditionView, common_fields, condition_view, is_ready


class SourceStockView(View, frozen=True, kw_only=True):
    """The stock that became this unit: a stock unit, which is deleted, or a prepared pod, which is the unit's pod."""

    grade: StockGrade
    """prepared: a running pod of a pool became the unit's pod. reserved: a stock unit reserved the GPUs."""

    name: str
    """The name of the stock unit or of the prepared pod."""

    namespace: str
    """The namespace of the stock unit or of the prepared pod."""

    uid: str
    """The UID of the stock unit or of the prepared pod."""

    pool: str | None = None
    """The pool of the prepared pod."""

    missed: str | None = None
    """Why no prepared pod was used: no pool, image differs, template differs, storage mounts, function or none
    ready."""


class UnitView(View, frozen=True, kw_only=True):
    """An active unit."""

    name: str
    """The name of the unit and of its Service."""

    namespace: str
    """The namespace of the unit."""

    spec_name: str
    """The flavor, for example g1.1."""

    image: str
    """The container image."""

    memory: str
    """The memory reservation and limit. Empty if there is no reservation and no limit."""

    gpu: int
    """The number of GPUs that the unit reserves."""

    cpu: str
    """The reserved CPUs. Empty if there is no reservation."""

    cpu_limit: str
    """The CPU limit. Empty if there is no limit."""

    ephemeral_storage: str
    """The disk space for logs and for files that are not in a storage. Empty if the default of the platform applies."""

    template: Template
    """Command, arguments, environment variables and ports of the container."""

    access: Access | None = None
    """The port and the scheme of the unit's URL."""

    probes: Probes | None = None
    """How Kubernetes checks the program in the container."""

    storage_mounts: tuple[StorageMount, ...]
    """Storages that are mounted into the container."""

    serverless: Serverless | None = None
    """The serverless settings, if the unit is a function."""

    max_duration_seconds: LifetimeSeconds | None = None
    """Stops the unit after this number of seconds, counted from the first time that it is Ready after a start."""

    stop_unless_extended_seconds: LifetimeSeconds | None = None
    """Stops the unit this number of seconds after the creation and after each start, unless an extend request gives a
    later time."""

    delete_after_seconds: LifetimeSeconds | None = None
    """Deletes the unit this number of seconds after its creation. Its storages stay."""

    extended_until: str | None = None
    """The time until which the unit is not stopped by stopUnlessExtendedSeconds."""

    stops_at: str | None = None
    """The time at which the platform stops the unit. With maxDurationSeconds only, it is known as soon as the unit is
    Ready."""

    deletes_at: str | None = None
    """The time at which the platform deletes the unit."""

    running: bool
    """Whether the unit should have a pod. A stop request sets it to false, a start request to true."""

    phase: UnitPhase
    """Empty (stopped), Progressing, Ready or Failed."""

    ready: bool
    """Whether the unit is ready to serve requests."""

    reason: str
    """Why the unit is ready or not, as a code for programs. Empty until the controller has reconciled the unit."""

    message: str
    """Why the unit is ready or not, as a text for people."""

    ready_replicas: int
    """The number of ready pods: 0 or 1."""

    service_name: str | None = None
    """The name of the unit's Service."""

    access_url: str | None = field(default=None, name="accessURL")
    """The URL of the unit inside the cluster."""

    conditions: tuple[ConditionView, ...]
    """All conditions of the unit. The fields ready, reason and message repeat the condition Ready."""

    observed_generation: int
    """The generation that the status describes. If it is lower than generation, the controller has not processed the
    last change."""

    generation: int
    """The number of the current version of the spec. Every change of the spec increases it."""

    uid: str
    """The UID of the unit. A unit that is deleted and created again has another UID."""

    created_at: str | None = None
    """When the unit was created."""

    deleting: bool
    """Whether the unit is being deleted."""

    operation_id: str | None = field(default=None, name="operationID")
    """The operation that created the unit."""

    source_stock: SourceStockView | None = None
    """The stock that the unit was created from."""


def unit_view(unit: GPUUnit) -> UnitView:
    """Return the view. It has every field of the spec."""
    metadata, status = unit.metadata, unit.status
    return UnitView(
        **common_fields(unit),
        **structs.asdict(unit.spec),
        uid=metadata.uid,
        phase=phase_of(unit),
        ready=is_ready(unit),
        ready_replicas=status.ready_replicas,
        service_name=status.service_name,
        access_url=status.access_url,
        stops_at=status.stops_at,
        deletes_at=status.deletes_at,
        conditions=tuple(map(condition_view, status.conditions)),
        operation_id=metadata.annotations.get(Annotation.OPERATION_ID),
        source_stock=_source_stock(metadata.annotations),
    )


def phase_of(unit: GPUUnit) -> UnitPhase:
    """Return the unit's phase. It is Progressing before the first reconcile, and for phases of a newer version."""
    return known_phase(unit.status.phase, UnitPhase.PROGRESSING)


def _source_stock(annotations: dict[str, str]) -> SourceStockView | None:
    name = annotations.get(Annotation.SOURCE_STOCK_NAME)
    if not name:
        return None
    pool = annotations.get(Annotation.SOURCE_STOCK_POOL)
    return SourceStockView(
        grade=StockGrade.of_source(pool),
        pool=pool,
        missed=annotations.get(Annotation.SOURCE_STOCK_MISSED),
        name=name,
        namespace=annotations.get(Annotation.SOURCE_STOCK_NAMESPACE, ""),
        uid=annotations.get(Annotation.SOURCE_STOCK_UID, ""),
    )
