"""The tree of errors that this package raises.

JetStreamError
├─ NatsUnreachable        no response arrived; `sent` says whether the server may have executed the request
├─ NoResponders           the subject has no subscriber: the service or the stream does not exist
├─ JetStreamApiError      the server rejected the request
│  ├─ NatsNotFound        the stream, consumer, bucket or key does not exist
│  ├─ WrongLastSequence   optimistic concurrency: another client wrote the key first
│  └─ StreamFull          the stream has reached one of its limits
├─ NatsMessageTooLarge    the message is larger than the server's max_payload
├─ ConfigMismatch         a stream or consumer exists with another value of a field that cannot be changed
├─ NatsDecodeError        the response does not have the expected format
└─ NatsMisconfigured      the URL, the credentials or the certificates are unusable
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct


class JetStreamError(Exception):
    """Base class of all errors of this package."""


class NatsUnreachable(JetStreamError):
    """The server did not respond."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent
        """Whether the server may have executed the request although no response arrived."""


class NoResponders(JetStreamError):
    """The subject has no subscriber."""


class JetStreamApiError(JetStreamError):
    """The server rejected the request."""

    def __init__(self, message: str, code: int = 0, err_code: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.err_code = err_code
        """The JetStream error code, which identifies the reason. `code` is only a general status, as in HTTP."""


class NatsNotFound(JetStreamApiError):
    """The stream, consumer, bucket or key does not exist."""


class WrongLastSequence(JetStreamApiError):
    """Another client wrote the key first: the expected last sequence is stale."""


class StreamFull(JetStreamApiError):
    """The stream has reached one of its limits."""


class NatsMessageTooLarge(JetStreamError):
    """The message is larger than the server's max_payload."""


class ConfigMismatch(JetStreamError):
    """A field of an existing stream, bucket or consumer differs from the settings and cannot be changed."""

    def __init__(self, resource: str, field: str, actual: Any, desired: Any) -> None:
        super().__init__(
            f"{resource} exists with {field} {actual!r}, but the settings require {desired!r}, and JetStream cannot"
            f" change this field: correct the settings, or delete the existing one when it is empty"
        )
        self.field = field


class NatsDecodeError(JetStreamError):
    """The response does not have the expected format."""


class NatsMisconfigured(JetStreamError):
    """The URL, the credentials or the certificates are unusable."""


class ApiErrorBody(Struct):
    """The `error` object of a JetStream response."""

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
"""The server uses this code for every reason for which it does not store a message. Only the description of the error
says whether a limit was reached."""


def is_transient(error: JetStreamError) -> bool:
    """Return whether a later retry may succeed: the server did not respond, or it reported a temporary failure."""
    server_error = isinstance(error, JetStreamApiError) and error.code >= 500
    return server_error or isinstance(error, NatsUnreachable | NoResponders | StreamFull)


def api_error_from(body: ApiErrorBody) -> JetStreamApiError:
    error_type = _ERRORS_BY_CODE.get(body.err_code, JetStreamApiError)
    if body.err_code == _STREAM_STORE_FAILED_CODE and "maximum" in body.description:
        error_type = StreamFull
    return error_type(body.description or f"error {body.code}", body.code, body.err_code)
