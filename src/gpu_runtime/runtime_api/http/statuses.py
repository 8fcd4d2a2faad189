"""Which status a fault is answered with."""

from gpu_runtime.contract.errors import (
    Conflict,
    Forbidden,
    Gone,
    NotFound,
    Overloaded,
    Rejected,
    RuntimeFault,
    TooLarge,
    Unauthenticated,
    Unavailable,
)

STATUSES: dict[type[RuntimeFault], int] = {
    Rejected: 400,
    Unauthenticated: 401,
    Forbidden: 403,
    NotFound: 404,
    Conflict: 409,
    Gone: 410,
    TooLarge: 413,
    Overloaded: 429,
    Unavailable: 503,
}


def status_of(fault: type[RuntimeFault]) -> int:
    """The status of the fault itself, or of the branch of the tree that it is on."""
    return next(STATUSES[each] for each in fault.__mro__ if each in STATUSES)
