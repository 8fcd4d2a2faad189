"""The Operation resource: the durable record of a request with an operationID.

An Operation has no owner reference, and it outlives the objects that it created.
"""

from enum import StrEnum
from typing import Annotated, ClassVar, TypeVar

from msgspec import field, structs

from gpu_runtime.contract.crd.markers import AGE_COLUMN, CelRule, CrdDefinition, PrinterColumn, openapi
from gpu_runtime.contract.crd.reservation import Reservation
from gpu_runtime.contract.crd.template import Count
from gpu_runtime.contract.crd.well_known import GROUP, VERSION
from gpu_runtime.kube.meta import ApiResource, KubeObject, KubeStruct, ObjectKey

MAX_OPERATION_ID_LENGTH = 256
MAX_STOCK_PER_OPERATION = 1000
"""The maximum number of stock units that one operation seeds."""
MAX_RECORDED_REQUEST_LENGTH = 256 * 1024
"""The maximum length of a recorded request in characters. With this length, an Operation is well below etcd's size
limit for an object."""

MAX_CALLER_LENGTH = 512
"""The maximum length of the name of a caller: `token:` or `serviceaccount:`, and the name of the token or account."""

OperationID = Annotated[str, openapi(minLength=1, maxLength=MAX_OPERATION_ID_LENGTH)]


class OperationType(StrEnum):
    CREATE_STOCK_POOL = "CreateStockPool"
    SEED_STOCK = "SeedStock"
    CREATE_UNIT = "CreateUnit"


class OperationState(StrEnum):
    """Accepted → Running → Succeeded, or Running → RollingBack → Failed. An operation that waits for stock
    stays in Accepted or returns to Accepted."""

    ACCEPTED = "Accepted"
    RUNNING = "Running"
    ROLLING_BACK = "RollingBack"
    """The API deletes the objects that the operation created. The next state is always Failed."""
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def finished(self) -> bool:
        return self in (OperationState.SUCCEEDED, OperationState.FAILED)


# Operations without a status are unfinished too. The field selector sees their state as empty.
UNFINISHED_SELECTOR = f"status.state!={OperationState.SUCCEEDED},status.state!={OperationState.FAILED}"
"""A field selector for unfinished operations. A label would need a second write: the final write changes the status,
and the status subresource does not write labels."""


class OperationTarget(KubeStruct, frozen=True, kw_only=True):
    """The object that the operation creates."""

    kind: Annotated[str, openapi(enum=["GPUUnit", "StockPool"])]
    """The kind of the object."""

    namespace: Annotated[str, openapi(minLength=1, maxLength=63)]
    """The namespace of the object."""

    name: Annotated[str, openapi(maxLength=63)] = ""
    """The name of the object. The field is empty for SeedStock, because SeedStock creates many objects."""


class SourceStock(Reservation, frozen=True, kw_only=True):
    """The stock unit that the operation consumes, and what the stock unit reserved: the target reserves the same. The
    API writes these fields before it claims the stock unit. They contain all values that the operation needs after the
    stock unit is deleted."""

    namespace: Annotated[str, openapi(minLength=1, maxLength=63)]
    """The namespace of the stock unit."""

    name: Annotated[str, openapi(minLength=1, maxLength=63)]
    """The name of the stock unit."""

    uid: Annotated[str, openapi(maxLength=64)]
    """The UID of the stock unit. It distinguishes the stock unit from a later stock unit with the same name."""

    node: Annotated[str, openapi(maxLength=253)] = ""
    """The name of the node on which the stock unit's pod ran."""

    pool: Annotated[str, openapi(maxLength=63)] = ""
    """The name of the pool, if the operation takes a prepared pod. Then namespace, name and uid are those of the pod.
    Empty if the operation consumes a stock unit."""

    missed: Annotated[str, openapi(maxLength=64)] = ""
    """Why the operation takes no prepared pod, for example `image differs`."""

    @property
    def is_prepared(self) -> bool:
        """Whether the operation takes a prepared pod. Otherwise it consumes a stock unit."""
        return bool(self.pool)


class OperationSpec(KubeStruct, frozen=True, kw_only=True):
    """The request, and the stock unit of the first attempt. It is immutable."""

    RULES: ClassVar = (
        CelRule(
            "self == oldSelf", "the spec of an operation is immutable: send a new request with another operationID"
        ),
        CelRule(
            "self.type == 'SeedStock' || (has(self.target.name) && self.target.name != '')",
            "target.name is required unless type is SeedStock: set target.name",
        ),
    )

    operation_id: OperationID = field(name="operationID")
    """The operationID that the caller chose. The name of this Operation is derived from it."""

    type: Annotated[str, openapi(enum=[each.value for each in OperationType])]
    """The type of the request: CreateStockPool, SeedStock or CreateUnit."""

    request_hash: Annotated[str, openapi(pattern="^[0-9a-f]{64}$", maxLength=64)]
    """The SHA-256 hash of the normalized request. The API rejects a request with the same operationID and another
    hash."""

    caller: Annotated[str, openapi(maxLength=MAX_CALLER_LENGTH)] = ""
    """The name of the authenticated caller that sent the first request. The limits per caller count the operations with
    this name."""

    # A string and not an object: CEL rules cannot read free-form objects, so they could not make it immutable.
    request: Annotated[str, openapi(maxLength=MAX_RECORDED_REQUEST_LENGTH)] = ""
    """The normalized request as canonical JSON. If a replica crashes, another replica reads the request from this field
    and resumes the operation. The field is empty if the operation was created without stock. In this case, only the
    caller can resume the operation: it sends the same request again."""

    target: OperationTarget
    """The object that the operation creates."""

    stock: SourceStock | None = None
    """The stock unit of the first attempt. The write that creates the Operation also records this stock unit. The field
    is absent if no stock unit was available at that time."""


class OperationError(KubeStruct, frozen=True, kw_only=True):
    """Why the operation failed."""

    code: Annotated[str, openapi(maxLength=64)]
    """The error code that the HTTP API returns."""

    message: Annotated[str, openapi(maxLength=4096)]
    """The error message that the HTTP API returns."""


class OperationProgressStatus(KubeStruct, frozen=True, kw_only=True):
    """The progress of the operation, without the request."""

    state: Annotated[str, openapi(enum=[each.value for each in OperationState])] = OperationState.ACCEPTED.value
    """Accepted (also while the operation waits for stock), Running, RollingBack (the API deletes the objects that the
    operation created), Succeeded or Failed."""

    stock: SourceStock | None = None
    """The stock unit that the current attempt consumes."""

    attempt: Count = 0
    """The number of the current attempt of a CreateUnit operation. Each attempt uses another stock unit. The API
    recognizes objects of earlier attempts by their attempt number. If this field is 0 and spec.stock is set, the
    current attempt is the first attempt, and it consumes the stock unit in spec.stock."""

    target_uid: Annotated[str, openapi(maxLength=64)] | None = field(default=None, name="targetUID")
    """The UID of the created object. It distinguishes the object from a later object with the same name."""

    stock_uids: Annotated[tuple[str, ...], openapi(maxItems=MAX_STOCK_PER_OPERATION)] = field(
        default=(), name="stockUIDs"
    )
    """The UIDs of the stock units that the operation seeded. A stock unit whose annotation has the same operationID,
    but whose UID is not in this list, does not belong to the operation. For example, a suspended process may have
    created a stock unit again after a handoff consumed the original stock unit."""

    error: OperationError | None = None
    """Why the operation failed."""

    started_at: Annotated[str, openapi(format="date-time")] | None = None
    """The time at which the current attempt started. The retention period of an operation that waits for stock starts
    at this time."""

    finished_at: Annotated[str, openapi(format="date-time")] | None = None
    """The time at which the operation succeeded or failed. The retention period of a finished operation starts at this
    time."""

    def has_created(self, uid: str) -> bool:
        """Whether the operation created the object with this UID."""
        return uid == self.target_uid or uid in self.stock_uids

    @property
    def created_uids(self) -> set[str]:
        """The UIDs of all objects that the operation created."""
        return {*self.stock_uids, *filter(None, [self.target_uid])}


class OperationStatus(OperationProgressStatus, frozen=True, kw_only=True):
    """The progress of the operation."""

    request: Annotated[str, openapi(maxLength=MAX_RECORDED_REQUEST_LENGTH)] = ""
    """The normalized request as canonical JSON, if spec.request is empty and the operation has selected stock. The
    write that selects the stock also writes this field. An operation that waits for stock has no value here."""


P = TypeVar("P", bound=OperationProgressStatus)


def effective_status(stock: SourceStock | None, status: P, recorded_at: str | None) -> P:
    """Return the status, with the stock unit of the spec as its first attempt if the status has no attempt yet.

    As soon as the status has an attempt, the stock unit of the spec is ignored, even if the status has no stock unit.
    All other code reads the result of this function.
    """
    if stock is None or status.attempt > 0:
        return status
    state = OperationState.RUNNING.value
    return structs.replace(status, state=state, stock=stock, attempt=1, started_at=recorded_at)


class Operation(KubeObject, frozen=True, kw_only=True):
    """The durable record of a request with an operationID. It contains the request, its progress and its outcome. The
    Operation stays for the retention period after the operation has finished, even if the objects that the operation
    created are deleted earlier."""

    spec: OperationSpec
    status: OperationStatus = OperationStatus()

    @property
    def effective_status(self) -> OperationStatus:
        """The status with the stock unit of the spec. Read it instead of `status`, and base status writes on it."""
        return effective_status(self.spec.stock, self.status, self.metadata.creation_timestamp)

    @property
    def request(self) -> str:
        """The recorded request. It is empty if the operation never had stock."""
        return self.spec.request or self.status.request

    @property
    def target_key(self) -> ObjectKey:
        return ObjectKey(self.spec.target.namespace, self.spec.target.name)


class OperationSummarySpec(KubeStruct, frozen=True, kw_only=True):
    operation_id: str = field(name="operationID")
    type: str
    caller: str = ""
    stock: SourceStock | None = None


class OperationSummary(KubeObject, frozen=True, kw_only=True):
    """An Operation without its request, for caches and lists. The request may be large and is rarely needed."""

    spec: OperationSummarySpec
    status: OperationProgressStatus = OperationProgressStatus()

    @property
    def effective_status(self) -> OperationProgressStatus:
        return effective_status(self.spec.stock, self.status, self.metadata.creation_timestamp)


AnyOperation = Operation | OperationSummary

OPERATIONS = ApiResource(GROUP, VERSION, "Operation", "operations", Operation)
OPERATION_SUMMARIES = ApiResource(GROUP, VERSION, "Operation", "operations", OperationSummary)

DEFINITION = CrdDefinition(
    OPERATIONS,
    short_names=("gop",),
    printer_columns=(
        PrinterColumn("ID", ".spec.operationID"),
        PrinterColumn("Type", ".spec.type"),
        PrinterColumn("Target", ".spec.target.name"),
        PrinterColumn("State", ".status.state"),
        PrinterColumn("Caller", ".spec.caller", wide=True),
        PrinterColumn("Error", ".status.error.message", wide=True),
        AGE_COLUMN,
    ),
    selectable_fields=(".status.state", ".spec.caller"),
)
