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

from gpu_runtime.kube.meta import Wire


class KubeError(Exception):
    """Something went wrong between this process and Kubernetes."""


class Cause(Wire, frozen=True, kw_only=True):
    """One field's part in a refusal."""

    field: str = ""
    reason: str = ""
    message: str = ""


class Details(Wire, frozen=True, kw_only=True):
    name: str = ""
    kind: str = ""
    causes: tuple[Cause, ...] = ()
    retry_after_seconds: int = 0


class Status(Wire, frozen=True, kw_only=True):
    """How the API server words a refusal."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: Details | None = None


class ApiError(KubeError):
    """The API server answered, and refused."""

    def __init__(self, status: Status, retry_after: float | None = None) -> None:
        super().__init__(status.message or f"HTTP {status.code}")
        self.code = status.code
        self.reason = status.reason
        self.causes = status.details.causes if status.details else ()
        self.retry_after = retry_after
        """How long the server asks to wait, in seconds. Given, it also means that nothing was carried out."""


class Invalid(ApiError):
    """The object or the request must change."""


class Unauthorized(ApiError):
    """The API server does not know who is calling."""


class Forbidden(ApiError):
    """The caller has no right, or a quota or policy refused."""


class NotFound(ApiError):
    """There is no such object."""


class NotServed(ApiError):
    """There is no such kind here: its definition is not installed."""


class AlreadyExists(ApiError):
    """Somebody else created it first."""


class Conflict(ApiError):
    """Somebody else wrote first, or owns the field."""


class Expired(ApiError):
    """That resource version or continuation is gone; read anew."""


class TooManyRequests(ApiError):
    """The server asks for patience."""


class ServerFailure(ApiError):
    """The server could not do its part."""


class Unreachable(KubeError):
    """No answer came."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent
        """Whether the request may have been carried out all the same."""


class Unreadable(KubeError):
    """An answer came that does not fit the model."""


class NotLeading(KubeError):
    """The write was held back: this process may no longer write."""


class Misconfigured(KubeError):
    """The kubeconfig or the pod's service account cannot be used."""


_BY_REASON: Mapping[str, type[ApiError]] = MappingProxyType({"AlreadyExists": AlreadyExists, "Expired": Expired})
_BY_CODE: Mapping[int, type[ApiError]] = MappingProxyType(
    {
        400: Invalid,
        401: Unauthorized,
        403: Forbidden,
        404: NotFound,
        409: Conflict,
        410: Expired,
        413: Invalid,
        422: Invalid,
        429: TooManyRequests,
    }
)
_MISAPPLIED = "failed to create typed patch object"
"""To server-side apply of a field that does not exist, the API server answers as if it were to blame itself."""
_STATUS = msgspec.json.Decoder(Status)


def refusal(code: int, body: bytes, retry_after: str | None = None) -> ApiError:
    """The error for an answer of the API server, or of a proxy before it, that is not a success."""
    wait = float(retry_after) if retry_after is not None and retry_after.isdecimal() else None
    try:
        status = _STATUS.decode(body)
    except (ValueError, RecursionError):  # no JSON, no UTF-8, or nested too deeply
        text = body[:500].decode(errors="replace").strip()
        return _kind(code, "", worded=False)(Status(code=code, message=text), wait)
    return refused(msgspec.structs.replace(status, code=status.code or code), wait)


def refused(status: Status, retry_after: float | None = None) -> ApiError:
    """The error for a refusal in Kubernetes' own words."""
    if retry_after is None and status.details and status.details.retry_after_seconds:
        retry_after = float(status.details.retry_after_seconds)
    if status.code == 500 and _MISAPPLIED in status.message:
        return Invalid(status, retry_after)
    return _kind(status.code, status.reason, worded=True)(status, retry_after)


def _kind(code: int, reason: str, *, worded: bool) -> type[ApiError]:
    if code == 404 and not worded:
        return NotServed  # for a path that it does not serve, the API server answers in plain text
    if reason in _BY_REASON:
        return _BY_REASON[reason]
    return _BY_CODE.get(code, ServerFailure if code >= 500 else ApiError)
