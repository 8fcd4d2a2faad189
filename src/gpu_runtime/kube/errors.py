"""Everything that can go wrong between this process and Kubernetes, as one tree.

KubeError
├─ ApiError              the API server answered, and refused
│  ├─ Invalid            the object or the request must change
│  ├─ Unauthorized       it does not know who is calling
│  ├─ Forbidden          the caller has no right, or a quota or policy refused
│  ├─ NotFound           no such object
│  ├─ NotServed          no such kind: its definition is not installed
│  ├─ AlreadyExists      somebody else created it first
│  ├─ Conflict           somebody else wrote first, or owns the field
│  ├─ Expired            that resource version or continuation is gone; read anew
│  ├─ TooManyRequests    the server asks for patience
│  └─ ServerFailure      the server could not do its part
├─ Unreachable           no answer came; `sent` says whether the request may have been carried out
├─ Unreadable            an answer came that does not fit the model
├─ NotLeading            the write was held back: this process may no longer write
└─ Misconfigured         the kubeconfig or the pod's service account cannot be used
"""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from gpu_runtime.kube.meta import KubeStruct


class KubeError(Exception):
    """Something went wrong between this process and Kubernetes."""


class StatusCause(KubeStruct, frozen=True, kw_only=True):
    """One field's part in a refusal."""

    field: str = ""
    reason: str = ""
    message: str = ""


class StatusDetails(KubeStruct, frozen=True, kw_only=True):
    name: str = ""
    kind: str = ""
    causes: tuple[StatusCause, ...] = ()
    retry_after_seconds: int = 0


class ApiStatus(KubeStruct, frozen=True, kw_only=True):
    """How the API server words a refusal."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


class KubeApiError(KubeError):
    """The API server answered, and refused."""

    def __init__(self, status: ApiStatus, retry_after: float | None = None) -> None:
        super().__init__(status.message or f"HTTP {status.code}")
        self.code = status.code
        self.reason = status.reason
        self.causes = status.details.causes if status.details else ()
        self.retry_after = retry_after
        """How long the server asks to wait, in seconds. Given, it also means that nothing was carried out."""


class KubeInvalid(KubeApiError):
    """The object or the request must change."""


class KubeUnauthorized(KubeApiError):
    """The API server does not know who is calling."""


class KubeForbidden(KubeApiError):
    """The caller has no right, or a quota or policy refused."""


class KubeNotFound(KubeApiError):
    """There is no such object."""


class KubeNoKindMatch(KubeApiError):
    """There is no such kind here: its definition is not installed."""


class KubeAlreadyExists(KubeApiError):
    """Somebody else created it first."""


class KubeConflict(KubeApiError):
    """Somebody else wrote first, or owns the field."""


class KubeResourceExpired(KubeApiError):
    """That resource version or continuation is gone; read anew."""


class KubeTooManyRequests(KubeApiError):
    """The server asks for patience."""


class KubeServerError(KubeApiError):
    """The server could not do its part."""


class KubeUnreachable(KubeError):
    """No answer came."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent
        """Whether the request may have been carried out all the same."""


class KubeDecodeError(KubeError):
    """An answer came that does not fit the model."""


class KubeNotLeader(KubeError):
    """The write was held back: this process may no longer write."""


class KubeConfigError(KubeError):
    """The kubeconfig or the pod's service account cannot be used."""


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
_INVALID_APPLY_MESSAGE = "failed to create typed patch object"
"""To server-side apply of a field that does not exist, the API server answers as if it were to blame itself."""
_STATUS_DECODER = msgspec.json.Decoder(ApiStatus)


def error_from_response(code: int, body: bytes, retry_after: str | None = None) -> KubeApiError:
    """The error for an answer of the API server, or of a proxy before it, that is not a success."""
    wait = float(retry_after) if retry_after is not None and retry_after.isdecimal() else None
    try:
        status = _STATUS_DECODER.decode(body)
    except (ValueError, RecursionError):  # no JSON, no UTF-8, or nested too deeply
        text = body[:500].decode(errors="replace").strip()
        return _error_class(code, "", has_status=False)(ApiStatus(code=code, message=text), wait)
    return error_from_status(msgspec.structs.replace(status, code=status.code or code), wait)


def error_from_status(status: ApiStatus, retry_after: float | None = None) -> KubeApiError:
    """The error for a refusal in Kubernetes' own words."""
    if retry_after is None and status.details and status.details.retry_after_seconds:
        retry_after = float(status.details.retry_after_seconds)
    if status.code == 500 and _INVALID_APPLY_MESSAGE in status.message:
        return KubeInvalid(status, retry_after)
    return _error_class(status.code, status.reason, has_status=True)(status, retry_after)


def _error_class(code: int, reason: str, *, has_status: bool) -> type[KubeApiError]:
    if code == 404 and not has_status:
        return KubeNoKindMatch  # for a path that it does not serve, the API server answers in plain text
    if reason in _ERRORS_BY_REASON:
        return _ERRORS_BY_REASON[reason]
    return _ERRORS_BY_CODE.get(code, KubeServerError if code >= 500 else KubeApiError)
