"""The request bodies and query parameters of the unit routes.

The limits here only describe the fields in the OpenAPI document. `unit_admission` enforces them with an error message
for each.
"""

from datetime import datetime
from typing import Annotated

from msgspec import UNSET, Meta, UnsetType, field

from gpu_runtime.contract.crd.conditions import UnitPhase
from gpu_runtime.contract.crd.gpu_unit import Access, LifetimeSeconds, Serverless, StorageMount
from gpu_runtime.contract.crd.markers import openapi
from gpu_runtime.contract.crd.operation import OperationID
from gpu_runtime.contract.crd.probes import Probes
from gpu_runtime.contract.crd.template import Count, Image, QuantityString, SpecName, Template
from gpu_runtime.contract.crd.well_known import MAX_NAME_LENGTH, NAME_PATTERN
from gpu_runtime.contract.stock_grades import StockGrade
from gpu_runtime.runtime_api.http.paging import PagedQuery
from gpu_runtime.runtime_api.http.route import Body, Query


class StockChoice(Body, frozen=True, kw_only=True):
    """Which stock the unit may use."""

    grades: tuple[StockGrade, ...] = ()
    """The grades that the unit may use: prepared, reserved. Default: all. The API uses the warmest grade that fits."""


class CreateUnit(Body, frozen=True, kw_only=True):
    """An active unit to create from stock of the same specName: from a prepared pod of an adoptable pool, if one fits
    the request, otherwise from a stock unit.

    The unit keeps the memory, GPUs, CPUs and ephemeral storage of the stock.
    """

    operation_id: OperationID = field(name="operationID")
    """The ID of this operation, chosen by the caller. The API executes repeated requests with the same ID only once."""

    name: Annotated[str, openapi(pattern=NAME_PATTERN, maxLength=MAX_NAME_LENGTH)]
    """The name of the unit and of its Service."""

    namespace: str = ""
    """The namespace of the unit. Default: the first namespace that the configuration allows."""

    spec_name: SpecName
    """The flavor, for example g1.1. The unit uses stock of this flavor."""

    stock_namespace: str = ""
    """The namespace of the stock. Default: the configured stock namespace, which is the only allowed value."""

    stock: StockChoice | None = None
    """Restricts the stock that the unit may use. Default: any stock of the flavor."""

    image: Image
    """The container image."""

    template: Template = Template()
    """Command, arguments, environment variables and ports of the container."""

    access: Access | None = None
    """The port and the scheme of the unit's URL."""

    probes: Probes | None = None
    """How Kubernetes checks the program. If readiness is omitted and the unit is not a function, the API adds a
    readiness probe: the unit is Ready when its primary port accepts TCP connections."""

    storage_mounts: tuple[StorageMount, ...] = ()
    """Storages of the same namespace to mount into the container."""

    serverless: Serverless | None = None
    """The serverless settings. They make the unit a function."""

    max_duration_seconds: LifetimeSeconds | None = None
    """Stops the unit after this number of seconds, counted from the first time that it is Ready after a start."""

    stop_unless_extended_seconds: LifetimeSeconds | None = None
    """Stops the unit this number of seconds after the creation and after each start, unless an extend request gives a
    later time."""

    delete_after_seconds: LifetimeSeconds | None = None
    """Deletes the unit this number of seconds after its creation. Its storages stay."""


class UpdateUnit(Body, frozen=True, kw_only=True):
    """The changes of a unit. An omitted field keeps its value. A given field replaces the whole value."""

    image: Image | UnsetType = UNSET
    """The container image."""

    template: Template | UnsetType = UNSET
    """Command, arguments, environment variables and ports of the container. Replaced as a whole: an omitted command is
    removed."""

    access: Access | UnsetType = UNSET
    """The port and the scheme of the unit's URL. Replaced as a whole."""

    probes: Probes | UnsetType = UNSET
    """How Kubernetes checks the program. Replaced as a whole. If readiness is omitted and the unit is not a function,
    the API adds a readiness probe of the primary port."""

    storage_mounts: tuple[StorageMount, ...] | UnsetType = UNSET
    """All storages to mount. An empty list removes every mount."""

    serverless: Serverless | UnsetType = UNSET
    """The serverless settings. Replaced as a whole. If the unit has a requestID, send the same requestID, because it
    cannot change."""

    max_duration_seconds: LifetimeSeconds | UnsetType | None = UNSET
    """Stops the unit after this number of seconds, counted from the first time that it is Ready after a start. null
    removes it."""

    stop_unless_extended_seconds: LifetimeSeconds | UnsetType | None = UNSET
    """Stops the unit this number of seconds after the creation and after each start, unless an extend request gives a
    later time. null removes it."""

    delete_after_seconds: LifetimeSeconds | UnsetType | None = UNSET
    """Deletes the unit this number of seconds after its creation. Its storages stay. null removes it."""

    spec_name: SpecName | UnsetType = UNSET
    """The flavor. It cannot change: only the current value is accepted."""

    memory: QuantityString | UnsetType = UNSET
    """The memory. It cannot change, because the stock reserved it: only the current value is accepted."""

    gpu: Count | UnsetType = UNSET
    """The number of GPUs. It cannot change, because the stock reserved the GPUs: only the current value is accepted."""

    cpu: QuantityString | UnsetType = UNSET
    """The CPUs. They cannot change, because the stock reserved them: only the current value is accepted."""

    cpu_limit: QuantityString | UnsetType = UNSET
    """The CPU limit. It cannot change, because the stock has it: only the current value is accepted."""

    ephemeral_storage: QuantityString | UnsetType = UNSET
    """The disk space. It cannot change, because the stock reserved it: only the current value is accepted."""


class ExtendUnit(Body, frozen=True, kw_only=True):
    """An extension of a unit that has stopUnlessExtendedSeconds."""

    until: Annotated[datetime, Meta(tz=True)]
    """The time until which the unit is not stopped, for example 2030-01-31T12:00:00Z. A time that is earlier than the
    current one has no effect."""


class UnitQuery(Query, frozen=True, kw_only=True):
    """Selects the namespace of one unit."""

    namespace: str = ""
    """The namespace of the unit. Default: the first namespace that the configuration allows."""


class ListUnits(PagedQuery, frozen=True, kw_only=True):
    """Filters of the unit list."""

    namespace: str = ""
    """Lists only units of this namespace. Default: units of every namespace that the configuration allows."""

    spec_name: str = ""
    """Lists only units of this flavor."""

    phase: UnitPhase | UnsetType = UNSET
    """Lists only units in this phase."""

    serverless: bool | UnsetType = UNSET
    """true: lists only functions. false: lists only units that are not functions."""
