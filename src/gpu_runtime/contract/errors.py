"""The errors that gpu-runtime reports to its callers, as one tree.

Each process translates an error into its own report. The runtime API returns an HTTP status. The controller manager
sets a condition. A consumer chooses how it acknowledges the message. The arrows in the tree show these three reports.

RuntimeFault
├─ Rejected               the caller must change the request  → 4xx | Ready=False | dead letter
│  ├─ Invalid             fields of the request or of the spec are invalid
│  ├─ Unauthenticated     the request has no valid credentials
│  ├─ Forbidden           the caller lacks the required scope
│  ├─ NotFound            the object does not exist
│  ├─ Gone                the operationID created an object that was deleted later (410)
│  └─ TooLarge            the body is larger than the limit (413)
├─ Conflict               the current state forbids the request  → 409 | retry | ack
│  ├─ AlreadyExists       another object has the name: choose another name
│  ├─ QuotaExceeded       a ResourceQuota rejected the object: free capacity, or raise the quota
│  ├─ AdmissionDenied     a policy or a webhook rejected the object: change the request or the policy
│  ├─ AlreadyFinished     the invocation has a result and cannot change any more
│  ├─ BeingDeleted        the object is being deleted: wait for the deletion, or choose another object
│  ├─ StockClaimed        a handoff has claimed the stock unit: choose another one
│  ├─ NoStockToReturn     no committed operation created the unit from a stock unit: delete the unit
│  ├─ LifetimeEnded       the platform has begun to stop the unit, because its lifetime is over: start the unit again
│  ├─ WriteConflict       other writers changed the object at every attempt: send the same request again
│  ├─ DuplicateRequestID  another function has the requestID: choose another requestID
│  ├─ NotRedrivable       the message of a dead letter is malformed: delete the dead letter
│  ├─ OperationReused     another request has used the operationID: choose a new one
│  ├─ InvocationReused    another request has used the invocationID: choose a new one
│  ├─ NoStock             no claimable stock of the flavor exists: send the same request again later
│  └─ StorageInUse        another unit has the storage attached: send the same request again later
└─ Unavailable            a dependency must recover  → 503 | requeue | nak with delay
   ├─ Overloaded          a rate limit or a queue limit is reached (429)
   │  └─ TooManyWaiting   no stock exists, and too many operations of the caller wait for stock
   └─ SyncTimeout         no result arrived within the maximum wait of a synchronous caller (504)
"""

from collections.abc import Sequence
from typing import ClassVar

from gpu_runtime.contract.validation.field_error import FieldError, first_errors


class RuntimeFault(Exception):
    """An error with a stable code for programs and a message for people. The message may change between versions."""

    code: ClassVar[str] = "fault"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Rejected(RuntimeFault):
    code = "rejected"


class Invalid(Rejected):
    code = "invalid"

    def __init__(self, errors: Sequence[FieldError]) -> None:
        """Report the first errors. `MAX_FIELD_ERRORS` limits their number."""
        self.errors = first_errors(errors)
        super().__init__("; ".join(map(str, self.errors)))


def require_valid(*errors: FieldError) -> None:
    """Raise Invalid if there are any errors."""
    if errors:
        raise Invalid(errors)


class Unauthenticated(Rejected):
    code = "unauthenticated"


class Forbidden(Rejected):
    code = "forbidden"


class NotFound(Rejected):
    code = "not_found"


class Gone(Rejected):
    code = "gone"


class TooLarge(Rejected):
    code = "too_large"


class Conflict(RuntimeFault):
    """The base class of all conflicts. Code raises a subclass, because the caller must react differently to each cause.

    Only `conflict_from` creates a plain Conflict, for a code of a newer version that this version does not know.
    """

    code = "conflict"


class AlreadyExists(Conflict):
    code = "already_exists"


class QuotaExceeded(Conflict):
    code = "quota_exceeded"


class AdmissionDenied(Conflict):
    code = "admission_denied"


class AlreadyFinished(Conflict):
    code = "already_finished"


class BeingDeleted(Conflict):
    code = "being_deleted"


class LifetimeEnded(Conflict):
    code = "lifetime_ended"


class StockClaimed(Conflict):
    code = "stock_claimed"


class NoStockToReturn(Conflict):
    code = "no_stock_to_return"


class WriteConflict(Conflict):
    code = "write_conflict"


class DuplicateRequestID(Conflict):
    code = "duplicate_request_id"


class NotRedrivable(Conflict):
    code = "not_redrivable"


class OperationReused(Conflict):
    code = "operation_reused"


class InvocationReused(Conflict):
    code = "invocation_reused"


class NoStock(Conflict):
    code = "no_stock"


class StorageInUse(Conflict):
    code = "storage_in_use"


def conflict_from(code: str, message: str) -> Conflict:
    """Return the conflict with this code, or a plain Conflict if this version does not know the code."""
    return _CONFLICTS_BY_CODE.get(code, Conflict)(message)


def stored_fault(code: str, message: str) -> RuntimeFault:
    """Return the fault that a failed operation has stored. Its class has the same code as on the first response."""
    match code:
        case Invalid.code:
            return Invalid((FieldError("request", message),))
        case TooLarge.code:
            return TooLarge(message)
    return conflict_from(code, message)


_CONFLICTS_BY_CODE: dict[str, type[Conflict]] = {each.code: each for each in Conflict.__subclasses__()}


class Unavailable(RuntimeFault):
    code = "unavailable"

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds until a retry can succeed, or None if unknown."""


class Overloaded(Unavailable):
    code = "overloaded"


class TooManyWaiting(Overloaded):
    """No stock is available, and too many operations of the caller already wait for stock."""

    code = "too_many_waiting"


class SyncTimeout(Unavailable):
    """No result arrived in time. The invocation continues. The caller can get its result later by the invocationID."""

    code = "sync_timeout"

    def __init__(self, message: str, invocation_id: str) -> None:
        super().__init__(message)
        self.invocation_id = invocation_id
