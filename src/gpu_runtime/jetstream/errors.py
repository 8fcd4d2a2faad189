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


class JetStreamError(Exception):
    """Something went wrong between this process and NATS."""


class NatsUnreachable(JetStreamError):
    """No answer came."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent
        """Whether the request may have been carried out all the same."""


class NoResponders(JetStreamError):
    """Nobody listens on that subject."""


class JetStreamApiError(JetStreamError):
    """The server answered, and refused."""

    def __init__(self, message: str, code: int = 0, err_code: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.err_code = err_code
        """The server's own number for the reason."""


class NatsNotFound(JetStreamApiError):
    """There is no such stream, consumer, bucket or key."""


class WrongLastSequence(JetStreamApiError):
    """Somebody else wrote the key first."""


class StreamFull(JetStreamApiError):
    """The stream holds as much as it may."""


class NatsMessageTooLarge(JetStreamError):
    """The message is larger than the server takes."""


class ConfigMismatch(JetStreamError):
    """What is there cannot be made what is wanted."""

    def __init__(self, what: str, field: str, actual: Any, desired: Any) -> None:
        super().__init__(
            f"{what} exists with {field} {actual!r}; wanted is {desired!r}, which cannot be changed while it exists:"
            f" correct the settings, or delete it once it is empty"
        )
        self.field = field


class NatsDecodeError(JetStreamError):
    """An answer came that does not fit the model."""


class NatsMisconfigured(JetStreamError):
    """The address, the credentials or the certificates cannot be used."""


class ApiErrorBody(Struct):
    """How JetStream words a refusal."""

    code: int = 0
    err_code: int = 0
    description: str = ""


_ERRORS_BY_CODE: Mapping[int, type[JetStreamApiError]] = MappingProxyType(
    {
        10014: NatsNotFound,  # consumer
        10037: NatsNotFound,  # message
        10059: NatsNotFound,  # stream
        10071: WrongLastSequence,
        10164: WrongLastSequence,
    }
)
_STREAM_STORE_FAILED_CODE = 10077
"""The server's one number for every reason not to store; what is full says so in words."""


def is_transient(error: JetStreamError) -> bool:
    """Whether the same may be taken a little later: it was not heard, or the server says that it is not able to now."""
    unable = isinstance(error, JetStreamApiError) and error.code >= 500
    return unable or isinstance(error, NatsUnreachable | NoResponders | StreamFull)


def api_error_from(fault: ApiErrorBody) -> JetStreamApiError:
    kind = _ERRORS_BY_CODE.get(fault.err_code, JetStreamApiError)
    if fault.err_code == _STREAM_STORE_FAILED_CODE and "maximum" in fault.description:
        kind = StreamFull
    return kind(fault.description or f"error {fault.code}", fault.code, fault.err_code)
