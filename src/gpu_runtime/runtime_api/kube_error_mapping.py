"""Maps errors of the Kubernetes API to faults of the contract, which the HTTP edge turns into responses."""

from collections.abc import Iterator

from gpu_runtime.contract.errors import (
    AdmissionDenied,
    Invalid,
    NotFound,
    QuotaExceeded,
    RuntimeFault,
    TooLarge,
    Unavailable,
    WriteConflict,
)
from gpu_runtime.contract.validation.field_error import FieldError
from gpu_runtime.kube import errors as kube


def fault_from_kube_error(error: kube.KubeError) -> RuntimeFault:
    match error:
        case kube.KubeApiError():
            return _fault_from_api_error(error)
        case kube.KubeDecodeError():
            return Unavailable(f"the response of Kubernetes cannot be decoded: {error}")
    return Unavailable(f"Kubernetes cannot be reached: {error}")


def _fault_from_api_error(error: kube.KubeApiError) -> RuntimeFault:
    match error:
        case kube.KubeConflict() | kube.KubeAlreadyExists():
            return WriteConflict(
                f"another request created or changed the object at the same time; send the request again ({error})"
            )
        case kube.KubeForbidden() if _is_policy_denial(error):
            rejection = QuotaExceeded if "exceeded quota" in str(error) else AdmissionDenied
            return rejection(f"a quota or an admission policy of the cluster rejects the request: {error}")
        case kube.KubeInvalid(code=413):
            return TooLarge(f"the object is too large for the cluster: {error}")
        case kube.KubeInvalid():
            return Invalid(tuple(_field_problems(error)))
        case kube.KubeNotFound():
            return NotFound(str(error))
    return Unavailable(f"Kubernetes cannot process the request now: {error}", retry_after=error.retry_after)


def _field_problems(error: kube.KubeInvalid) -> Iterator[FieldError]:
    """Yield one error per field if the API server names the fields, otherwise one error for the whole request."""
    for cause in error.causes:
        yield FieldError(_request_field_path(cause.field), cause.message or cause.reason)
    if not error.causes:
        yield FieldError("request", f"the cluster rejects it: {error}")


def _request_field_path(field: str) -> str:
    """Return the path of the field in the HTTP request. A request field becomes a field of the spec or the metadata."""
    path = field.removeprefix("spec.").removeprefix("metadata.")
    return "request" if path in ("", "<nil>") else path


def is_rbac_denial(error: kube.KubeForbidden) -> bool:
    """Whether RBAC denies the request because this process lacks a permission.

    If RBAC does not deny it, a quota or an admission policy rejected the request, and the caller must change the
    request.
    """
    return " cannot " in str(error) and "in API group" in str(error)


def permanent_fault(error: kube.KubeError) -> RuntimeFault:
    """Return the fault of a permanent rejection. Raise the error itself if a retry may succeed."""
    if not is_permanent_rejection(error):
        raise error
    return fault_from_kube_error(error)


def is_permanent_rejection(error: kube.KubeError) -> bool:
    """Whether Kubernetes rejects the object itself. If so, a retry cannot succeed, and nothing was written."""
    return isinstance(error, kube.KubeInvalid) or (isinstance(error, kube.KubeForbidden) and _is_policy_denial(error))


def _is_policy_denial(error: kube.KubeForbidden) -> bool:
    """Whether a quota or an admission policy rejects the object.

    A new quota rejects requests with "status unknown for quota" until Kubernetes has counted its usage. That rejection
    is temporary.
    """
    return not is_rbac_denial(error) and "status unknown for quota" not in str(error)
