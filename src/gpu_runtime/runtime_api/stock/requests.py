"""The request bodies and query parameters of the stock and pool routes.

The limits here only describe the fields in the OpenAPI document. `stock_admission` enforces them with an error message
for each.
"""

from typing import Annotated

from msgspec import UNSET, UnsetType, field

from gpu_runtime.contract.crd.conditions import UnitPhase
from gpu_runtime.contract.crd.gpu_unit import Access
from gpu_runtime.contract.crd.markers import openapi
from gpu_runtime.contract.crd.operation import MAX_STOCK_PER_OPERATION, OperationID
from gpu_runtime.contract.crd.probes import Probes
from gpu_runtime.contract.crd.reservation import Reservation
from gpu_runtime.contract.crd.template import Count, Image, SpecName, Template
from gpu_runtime.contract.crd.well_known import MAX_POOL_NAME_LENGTH, NAME_PATTERN
from gpu_runtime.runtime_api.http.paging import PagedQuery
from gpu_runtime.runtime_api.http.route import Body, Query


class CreateStockPool(Body, Reservation, frozen=True, kw_only=True):
    """A pool of warm capacity to create: replicas of one image, each with its own GPUs."""

    operation_id: OperationID = field(name="operationID")
    """The ID of this operation, chosen by the caller. The API executes repeated requests with the same ID only once."""

    name: Annotated[str, openapi(pattern=NAME_PATTERN, maxLength=MAX_POOL_NAME_LENGTH)] = ""
    """The name of the pool, at most 58 characters. Default: a name that is derived from the operationID."""

    namespace: str = ""
    """The namespace of the pool. Default: the first namespace that the configuration allows."""

    spec_name: SpecName
    """The flavor, for example g1.1."""

    image: Image = ""
    """The container image of every replica. Default: the placeholder image of the platform."""

    replicas: Count
    """The desired number of replicas. With 0, the pool exists without replicas."""

    template: Template = Template()
    """Command, arguments, environment variables and ports of the container. Without command and args, a replica only
    sleeps."""

    adoptable: bool = False
    """Whether a create request in the same namespace may take a replica. Then the running replica becomes the unit, and
    the pool starts another replica. The request must have the specName, image, template, access and probes of the pool.
    """

    access: Access | None = None
    """The port and the scheme of the units' URLs. Only for adoptable pools."""

    probes: Probes | None = None
    """How Kubernetes checks the program. If readiness is omitted, the replicas have the readiness probe that the API
    adds to a unit. Only for adoptable pools."""


class SeedStock(Body, Reservation, frozen=True, kw_only=True):
    """Stock units to create. A stock unit reserves GPUs until a unit is created from it. It has no image: the create
    request of the unit contains the image."""

    operation_id: OperationID = field(name="operationID")
    """The ID of this operation, chosen by the caller. The API executes repeated requests with the same ID only once."""

    spec_name: SpecName
    """The flavor, for example g1.1. Units of this flavor use this stock."""

    replicas: Annotated[int, openapi(format="int32", minimum=1, maximum=MAX_STOCK_PER_OPERATION)]
    """The number of stock units to create, from 1 to 1000. The operation creates all of them or none."""


class ListPools(PagedQuery, frozen=True, kw_only=True):
    namespace: str = ""
    """Lists only pools of this namespace."""

    spec_name: str = ""
    """Lists only pools of this flavor."""

    phase: UnitPhase | UnsetType = UNSET
    """Lists only pools in this phase."""


class PoolQuery(Query, frozen=True, kw_only=True):
    namespace: str = ""
    """The namespace of the pool. Default: the first namespace that the configuration allows."""


class ListStock(PagedQuery, frozen=True, kw_only=True):
    spec_name: str = ""
    """Lists only stock units of this flavor."""

    phase: UnitPhase | UnsetType = UNSET
    """Lists only stock units in this phase."""

    claimed: bool | UnsetType = UNSET
    """true: lists only stock units that an operation has claimed. false: lists only other stock units."""


class InventoryQuery(Query, frozen=True, kw_only=True):
    spec_name: str = ""
    """Counts only this flavor. Default: all flavors."""
