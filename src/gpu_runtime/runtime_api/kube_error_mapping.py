"""What Kubernetes refuses, in the words of the product: the edge knows how to answer those."""

from collections.abc import Iterator
from contextlib import contextmanager

from gpu_runtime.contract.errors import Conflict, Invalid, NotFound, RuntimeFault, TooLarge, Unavailable
from gpu_runtime.contract.validation.field_error import FieldError
from gpu_runtime.kube import errors as kube


def fault_from_kube_error(error: kube.KubeError) -> RuntimeFault:
    match error:
        case kube.KubeApiError():
            return _fault_from_api_error(error)
        case kube.KubeDecodeError():
            return Unavailable(f"Kubernetes answered something that cannot be read: {error}")
    return Unavailable(f"Kubernetes cannot be reached: {error}")


def _fault_from_api_error(error: kube.KubeApiError) -> RuntimeFault:
    match error:
        case kube.KubeConflict() | kube.KubeAlreadyExists():
            return Conflict(f"somebody else wrote at the same time; try again ({error})")
        case kube.KubeForbidden() if _is_policy_denial(error):
            return Conflict(f"the cluster refuses it: {error}")
        case kube.KubeInvalid(code=413):
            return TooLarge(f"the cluster does not take an object of this size: {error}")
        case kube.KubeInvalid():
            return Invalid(tuple(_field_problems(error)))
        case kube.KubeNotFound():
            return NotFound(str(error))
    return Unavailable(f"Kubernetes cannot do this now: {error}", retry_after=error.retry_after)


def _field_problems(error: kube.KubeInvalid) -> Iterator[FieldError]:
    """Field by field where the API server says which."""
    for cause in error.causes:
        yield FieldError(_request_field_path(cause.field), cause.message or cause.reason)
    if not error.causes:
        yield FieldError("request", f"the cluster does not accept it: {error}")


def _request_field_path(field: str) -> str:
    """The field as the caller knows it: what a request says of an object becomes its spec or its name."""
    path = field.removeprefix("spec.").removeprefix("metadata.")
    return "request" if path in ("", "<nil>") else path


def is_rbac_denial(error: kube.KubeForbidden) -> bool:
    """Whether this process lacks a right; else a quota or a policy refused, which is the caller's concern."""
    return " cannot " in str(error) and "in API group" in str(error)


def is_permanent_rejection(error: kube.KubeError) -> bool:
    """Whether trying again cannot help: the object itself is refused, and nothing was written."""
    return isinstance(error, kube.KubeInvalid) or (isinstance(error, kube.KubeForbidden) and _is_policy_denial(error))


def _is_policy_denial(error: kube.KubeForbidden) -> bool:
    """Whether a quota or a policy says no. A quota that is new says for a moment that it has not counted yet."""
    return not is_rbac_denial(error) and "status unknown for quota" not in str(error)


@contextmanager
def translate_kube_errors() -> Iterator[None]:
    """Around what is done for a caller: Kubernetes' refusals leave it as faults that the edge can answer."""
    try:
        yield
    except kube.KubeError as error:
        raise fault_from_kube_error(error) from error
