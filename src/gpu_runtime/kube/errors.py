"""The errors of requests to Kubernetes, as one class tree.

KubeError
├─ KubeApiError             the API server responded with an error
│  ├─ KubeInvalid           the object or the request is invalid
│  ├─ KubeUnauthorized      the API server does not accept the credentials
│  ├─ KubeForbidden         RBAC, a quota or a policy forbids the request
│  ├─ KubeNotFound          the object does not exist
│  ├─ KubeNoKindMatch       the API server does not serve the kind: its CRD is not installed
│  ├─ KubeAlreadyExists     another client created the object first
│  ├─ KubeConflict          another client changed the object first
│  ├─ KubeResourceExpired   the server no longer has the resource version or continue token; list again
│  ├─ KubeTooManyRequests   the server limits the request rate; retry later
│  └─ KubeServerError       the server failed
├─ KubeUnreachable          no response arrived; `sent` says whether the server may have executed the request
├─ KubeDecodeError          a response does not match the model
├─ KubeNotLeader            the write was not sent: this process is no longer the leader
└─ KubeConfigError          the kubeconfig or the service account of the pod cannot be used
"""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from gpu_runtime.kube.meta import KubeStruct


class KubeError(Exception):
    """Base class of all errors of requests to Kubernetes."""


class StatusCause(KubeStruct, frozen=True, kw_only=True):
    """A field that caused an error, and the reason of the error."""

    field: str = ""
    reason: str = ""
    message: str = ""


class StatusDetails(KubeStruct, frozen=True, kw_only=True):
    name: str = ""
    kind: str = ""
    causes: tuple[StatusCause, ...] = ()
    retry_after_seconds: int = 0


class ApiStatus(KubeStruct, frozen=True, kw_only=True):
    """The `Status` object with which the API server describes an error."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


class KubeApiError(KubeError):
    """The API server responded with an error."""

    def __init__(self, status: ApiStatus, retry_after: float | None = None) -> None:
        super().__init__(status.message or f"HTTP {status.code}")
        self.code = status.code
        self.reason = status.reason
        self.causes = status.details.causes if status.details else ()
        self.retry_after = retry_after
        """Seconds to wait before a retry. If the server sends this value, it has not executed the request."""


class KubeInvalid(KubeApiError):
    """The object or the request is invalid. A retry cannot succeed."""


class KubeUnauthorized(KubeApiError):
    """The API server does not accept the credentials."""


class KubeForbidden(KubeApiError):
    """RBAC, a quota or a policy forbids the request."""


class KubeNotFound(KubeApiError):
    """The object does not exist."""


class KubeNoKindMatch(KubeApiError):
    """The API server does not serve the kind: its CRD is not installed."""


class KubeAlreadyExists(KubeApiError):
    """Another client created the object first."""


class KubeConflict(KubeApiError):
    """Another client changed the object first."""


class KubeResourceExpired(KubeApiError):
    """The server no longer has the resource version or the continue token. List again."""


class KubeTooManyRequests(KubeApiError):
    """The server limits the request rate. Retry later."""


class KubeServerError(KubeApiError):
    """The server failed to process the request."""


class KubeUnreachable(KubeError):
    """No response arrived."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent
        """Whether the server may have executed the request although no response arrived."""


class KubeDecodeError(KubeError):
    """A response does not match the model."""


class KubeNotLeader(KubeError):
    """The write was not sent: this process is no longer the leader."""


class KubeConfigError(KubeError):
    """The kubeconfig or the service account of the pod cannot be used."""


_ERRORS_BY_REASON: Mapping[str, type[KubeApiError]] = MappingProxyType(
    {"AlreadyExists": KubeAlreadyExists, "Expired": KubeResourceExpired}
)
_ERRORS_BY_CODE: Mapping[int, type[KubeApiError]] = MappingProxyType(
    {
        400: KubeInvalid,
        401: KubeUnauthorized,
        403: KubeForbidden,
        404: KubeNotFound,
        409: KubeConflict,
        410: KubeResourceExpired,
        413: KubeInvalid,
        422: KubeInvalid,
        429: KubeTooManyRequests,
    }
)
_STATUS_DECODER = msgspec.json.Decoder(ApiStatus)


def error_from_response(code: int, body: bytes, retry_after: str | None = None) -> KubeApiError:
    """Return the error for an unsuccessful response from the API server, or from a proxy in front of it."""
    seconds = float(retry_after) if retry_after is not None and retry_after.isdecimal() else None
    try:
        status = _STATUS_DECODER.decode(body)
    except (ValueError, RecursionError):  # the body is not JSON, not UTF-8, or nested too deeply
        text = body[:500].decode(errors="replace").strip()
        return _error_class(code, "", has_status=False)(ApiStatus(code=code, message=text), seconds)
    return error_from_status(msgspec.structs.replace(status, code=status.code or code), seconds)


def error_from_status(status: ApiStatus, retry_after: float | None = None) -> KubeApiError:
    """Return the error that a `Status` object of the API server describes."""
    if retry_after is None and status.details and status.details.retry_after_seconds:
        retry_after = float(status.details.retry_after_seconds)
    return _error_class(status.code, status.reason, has_status=True)(status, retry_after)


def _error_class(code: int, reason: str, *, has_status: bool) -> type[KubeApiError]:
    if code == 404 and not has_status:
        return KubeNoKindMatch  # the API server responds in plain text for a path that it does not serve

    if reason in _ERRORS_BY_REASON:
        return _ERRORS_BY_REASON[reason]
    return _ERRORS_BY_CODE.get(code, KubeServerError if code >= 500 else KubeApiError)
