"""Everything that can go wrong between this process and NATS, as one tree.

StreamError
├─ Unreachable        no answer came; `sent` says whether the request may have been carried out
├─ NoResponders       nobody listens on that subject: no such service, or no such stream
├─ Refused            the server answered, and refused
│  ├─ NotFound        no such stream, consumer, bucket or key
│  ├─ Outrun          somebody else wrote the key first
│  └─ Full            the stream holds as much as it may
├─ TooLarge           the message is larger than the server takes
├─ Misfit             what is there cannot be made what is wanted
├─ Unreadable         an answer came that does not fit the model
└─ Misconfigured      the address, the credentials or the certificates cannot be used
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct


class StreamError(Exception):
    """Something went wrong between this process and NATS."""


class Unreachable(StreamError):
    """No answer came."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent
        """Whether the request may have been carried out all the same."""


class NoResponders(StreamError):
    """Nobody listens on that subject."""


class Refused(StreamError):
    """The server answered, and refused."""

    def __init__(self, message: str, code: int = 0, kind: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.kind = kind
        """The server's own number for the reason."""


class NotFound(Refused):
    """There is no such stream, consumer, bucket or key."""


class Outrun(Refused):
    """Somebody else wrote the key first."""


class Full(Refused):
    """The stream holds as much as it may."""


class TooLarge(StreamError):
    """The message is larger than the server takes."""


class Misfit(StreamError):
    """What is there cannot be made what is wanted."""

    def __init__(self, what: str, field: str, found: Any, wanted: Any) -> None:
        super().__init__(
            f"{what} exists with {field} {found!r}; wanted is {wanted!r}, which cannot be changed while it exists:"
            f" correct the settings, or delete it once it is empty"
        )
        self.field = field


class Unreadable(StreamError):
    """An answer came that does not fit the model."""


class Misconfigured(StreamError):
    """The address, the credentials or the certificates cannot be used."""


class ApiFault(Struct):
    """How JetStream words a refusal."""

    code: int = 0
    err_code: int = 0
    description: str = ""


_BY_KIND: Mapping[int, type[Refused]] = MappingProxyType(
    {
        10014: NotFound,  # consumer
        10037: NotFound,  # message
        10059: NotFound,  # stream
        10071: Outrun,
        10164: Outrun,
    }
)
_STORE_FAILED = 10077
"""The server's one number for every reason not to store; what is full says so in words."""


def is_passing(error: StreamError) -> bool:
    """Whether the same may be taken a little later: it was not heard, or the server says that it is not able to now."""
    unable = isinstance(error, Refused) and error.code >= 500
    return unable or isinstance(error, Unreachable | NoResponders | Full)


def refusal(fault: ApiFault) -> Refused:
    kind = _BY_KIND.get(fault.err_code, Refused)
    if fault.err_code == _STORE_FAILED and "maximum" in fault.description:
        kind = Full
    return kind(fault.description or f"error {fault.code}", fault.code, fault.err_code)
