"""What can go wrong, as one tree. The edges translate a branch: into HTTP, into a condition, into a queue's answer.

RuntimeFault
├─ Rejected             the caller must change   → 4xx | Ready=False | dead letter
│  ├─ Invalid           the request or the spec is wrong, field by field
│  ├─ Unauthenticated   the caller did not say who it is
│  ├─ Forbidden         the caller may not do this
│  ├─ NotFound          there is no such thing
│  ├─ Gone              it was made under this operationID and has been deleted since
│  └─ TooLarge          the body is larger than the limit
├─ Conflict             somebody else was first  → 409 | retry       | ack
│  ├─ OperationReused   the operationID already stands for another request
│  ├─ InvocationReused  the invocationID already stands for another request
│  ├─ NoStock           no Ready stock of that spec is left
│  └─ StorageInUse      another unit holds the storage
└─ Unavailable          the world must change    → 503 | requeue     | nak with delay
   ├─ Overloaded        too much is waiting already (429)
   └─ SyncTimeout       the answer did not come while the caller could wait (504)
"""

from collections.abc import Sequence
from typing import ClassVar

from gpu_runtime.contract.validation.field_error import FieldError


class RuntimeFault(Exception):
    """A fault with a sentence for a person and a code for a program. The code never changes, the sentence may."""

    code: ClassVar[str] = "fault"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Rejected(RuntimeFault):
    code = "rejected"


class Invalid(Rejected):
    code = "invalid"

    def __init__(self, errors: Sequence[FieldError]) -> None:
        super().__init__("; ".join(map(str, errors)))
        self.errors = tuple(errors)


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
    code = "conflict"


class OperationReused(Conflict):
    code = "operation_reused"


class InvocationReused(Conflict):
    code = "invocation_reused"


class NoStock(Conflict):
    code = "no_stock"


class StorageInUse(Conflict):
    code = "storage_in_use"


class Unavailable(RuntimeFault):
    code = "unavailable"

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds after which another try makes sense, where that is known."""


class Overloaded(Unavailable):
    code = "overloaded"


class SyncTimeout(Unavailable):
    """The invocation goes on. Its ID is all that the caller needs to have its result later."""

    code = "sync_timeout"

    def __init__(self, message: str, invocation_id: str) -> None:
        super().__init__(message)
        self.invocation_id = invocation_id
