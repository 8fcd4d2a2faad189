"""Operation: the durable record behind an operationID. It outlives what it made and has no owner."""

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import field, structs

from gpu_runtime.contract.crd.markers import AGE_COLUMN, CelRule, CrdDefinition, PrinterColumn, openapi
from gpu_runtime.contract.crd.template import Count, QuantityString
from gpu_runtime.contract.crd.well_known import GROUP, VERSION
from gpu_runtime.kube.meta import ApiResource, KubeObject, KubeStruct

MAX_OPERATION_ID_LENGTH = 256
MAX_STOCK_PER_OPERATION = 1000
"""How much stock one operation seeds at most."""
MAX_RECORDED_REQUEST_LENGTH = 256 * 1024
"""Characters of a request that the record keeps: well below what etcd takes for an object."""

OperationID = Annotated[str, openapi(minLength=1, maxLength=MAX_OPERATION_ID_LENGTH)]


class OperationType(StrEnum):
    CREATE_STOCK_POOL = "CreateStockPool"
    SEED_STOCK = "SeedStock"
    CREATE_UNIT = "CreateUnit"


class OperationState(StrEnum):
    """Accepted → Running → Succeeded, or Running → RollingBack → Failed. "No stock" leaves it where it is."""

    ACCEPTED = "Accepted"
    RUNNING = "Running"
    ROLLING_BACK = "RollingBack"
    """What was made is being undone: from here the operation can only fail."""
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def finished(self) -> bool:
        return self in (OperationState.SUCCEEDED, OperationState.FAILED)


# Operations without a status yet are unfinished too, and select as an empty state.
UNFINISHED_SELECTOR = f"status.state!={OperationState.SUCCEEDED},status.state!={OperationState.FAILED}"
"""A field selector. A label would cost a write of its own: finishing writes the status, and labels are not in it."""


class OperationTarget(KubeStruct, frozen=True, kw_only=True):
    """What the operation makes."""

    kind: Annotated[str, openapi(enum=["GPUUnit", "StockPool"])]
    """The kind of the object."""

    namespace: Annotated[str, openapi(minLength=1, maxLength=63)]
    """The namespace of the object."""

    name: Annotated[str, openapi(maxLength=63)] = ""
    """The name of the object. Empty for seeded stock, of which there are many."""


class SourceStock(KubeStruct, frozen=True, kw_only=True):
    """The stock unit that becomes the target, written down before it is claimed, with all that is needed once it is
    deleted."""

    namespace: Annotated[str, openapi(minLength=1, maxLength=63)]
    """The stock unit's namespace."""

    name: Annotated[str, openapi(minLength=1, maxLength=63)]
    """The stock unit's name."""

    uid: Annotated[str, openapi(maxLength=64)]
    """The stock unit's UID: one of the same name that comes later is another one."""

    memory: QuantityString = ""
    """The memory it reserved, which the target keeps."""

    gpu: Count = 0
    """The GPUs it held, which the target keeps."""

    node: Annotated[str, openapi(maxLength=253)] = ""
    """The node where it held them."""


class OperationSpec(KubeStruct, frozen=True, kw_only=True):
    """What was asked, and the stock with which it began. It never changes."""

    RULES: ClassVar = (
        CelRule("self == oldSelf", "an operation never changes what was asked"),
        CelRule(
            "self.type == 'SeedStock' || (has(self.target.name) && self.target.name != '')",
            "an operation names what it makes, unless it seeds stock",
        ),
    )

    operation_id: OperationID = field(name="operationID")
    """The caller's name for the operation. The object's own name is derived from it."""

    type: Annotated[str, openapi(enum=[each.value for each in OperationType])]
    """What kind of request it was: CreateStockPool, SeedStock or CreateUnit."""

    request_hash: Annotated[str, openapi(pattern="^[0-9a-f]{64}$", maxLength=64)]
    """The SHA-256 of the normalised request: the same operationID with another hash is another request."""

    # A string and not an object: rules cannot see into free-form objects, so they could not hold it unchanged.
    request: Annotated[str, openapi(maxLength=MAX_RECORDED_REQUEST_LENGTH)] = ""
    """The normalised request as canonical JSON: whatever finishes the operation after a crash works from it."""

    target: OperationTarget
    """What the operation makes."""

    stock: SourceStock | None = None
    """The stock unit of the first attempt, if there was one to be had: the record and the choice are one write."""


class OperationError(KubeStruct, frozen=True, kw_only=True):
    """Why the operation failed."""

    code: Annotated[str, openapi(maxLength=64)]
    """The code that the API answers with."""

    message: Annotated[str, openapi(maxLength=4096)]
    """The sentence that the API answers with."""


class OperationStatus(KubeStruct, frozen=True, kw_only=True):
    """How far the operation is."""

    state: Annotated[str, openapi(enum=[each.value for each in OperationState])] = OperationState.ACCEPTED.value
    """Accepted, Running, RollingBack, Succeeded or Failed."""

    stock: SourceStock | None = None
    """The stock unit that becomes the target."""

    attempt: Count = 0
    """How often stock was chosen; what an earlier attempt made, nobody takes for this one's. While it is 0, the spec's
    stock is the first attempt's."""

    target_uid: Annotated[str, openapi(maxLength=64)] | None = field(default=None, name="targetUID")
    """The UID of the object that was made: one of the same name that comes later is another one."""

    stock_uids: Annotated[tuple[str, ...], openapi(maxItems=MAX_STOCK_PER_OPERATION)] = field(
        default=(), name="stockUIDs"
    )
    """The UIDs of the stock units that were seeded. Others that carry the operation's name are not its own: a process
    that was asleep may have made one again after the first was consumed."""

    error: OperationError | None = None
    """Why the operation failed."""

    started_at: Annotated[str, openapi(format="date-time")] | None = None
    """When work on it began."""

    finished_at: Annotated[str, openapi(format="date-time")] | None = None
    """When it succeeded or failed: its retention counts from here."""

    def has_created(self, uid: str) -> bool:
        """Whether this object is what the operation made."""
        return uid == self.target_uid or uid in self.stock_uids

    @property
    def created_uids(self) -> set[str]:
        """The UIDs of all that the operation made."""
        return {*self.stock_uids, *filter(None, [self.target_uid])}


def effective_status(stock: SourceStock | None, status: OperationStatus, recorded_at: str | None) -> OperationStatus:
    """How far an operation is that was recorded with this stock: the one place that knows of both choices.

    The first attempt is the spec's until the status knows of an attempt; from then on the status alone is true, also
    where it says that no stock is chosen.
    """
    if stock is None or status.attempt > 0:
        return status
    state = OperationState.RUNNING.value
    return structs.replace(status, state=state, stock=stock, attempt=1, started_at=recorded_at)


class Operation(KubeObject, frozen=True, kw_only=True):
    """The durable record behind an operationID: what was asked, how far it is, and how it ended. It is kept for the
    retention time, also when what it made is gone."""

    spec: OperationSpec
    status: OperationStatus = OperationStatus()

    @property
    def effective_status(self) -> OperationStatus:
        """What everybody reads instead of the status, and writes as the next status."""
        return effective_status(self.spec.stock, self.status, self.metadata.creation_timestamp)


OPERATIONS = ApiResource(GROUP, VERSION, "Operation", "operations", Operation)

DEFINITION = CrdDefinition(
    OPERATIONS,
    short_names=("gop",),
    printer_columns=(
        PrinterColumn("ID", ".spec.operationID"),
        PrinterColumn("Type", ".spec.type"),
        PrinterColumn("Target", ".spec.target.name"),
        PrinterColumn("State", ".status.state"),
        PrinterColumn("Error", ".status.error.message", wide=True),
        AGE_COLUMN,
    ),
    selectable_fields=(".status.state",),
)
