"""What Kubernetes refuses, in the words of the product: the edge knows how to answer those."""

from collections.abc import Iterator
from contextlib import contextmanager

from gpu_runtime.contract.errors import Conflict, Invalid, NotFound, RuntimeFault, TooLarge, Unavailable
from gpu_runtime.contract.validation.field_error import Problem
from gpu_runtime.kube import errors as kube


def translated(error: kube.KubeError) -> RuntimeFault:
    match error:
        case kube.ApiError():
            return _refused(error)
        case kube.Unreadable():
            return Unavailable(f"Kubernetes answered something that cannot be read: {error}")
    return Unavailable(f"Kubernetes cannot be reached: {error}")


def _refused(error: kube.ApiError) -> RuntimeFault:
    match error:
        case kube.Conflict() | kube.AlreadyExists():
            return Conflict(f"somebody else wrote at the same time; try again ({error})")
        case kube.Forbidden() if _is_refusal(error):
            return Conflict(f"the cluster refuses it: {error}")
        case kube.Invalid(code=413):
            return TooLarge(f"the cluster does not take an object of this size: {error}")
        case kube.Invalid():
            return Invalid(tuple(_problems(error)))
        case kube.NotFound():
            return NotFound(str(error))
    return Unavailable(f"Kubernetes cannot do this now: {error}", retry_after=error.retry_after)


def _problems(error: kube.Invalid) -> Iterator[Problem]:
    """Field by field where the API server says which."""
    for cause in error.causes:
        yield Problem(_callers_path(cause.field), cause.message or cause.reason)
    if not error.causes:
        yield Problem("request", f"the cluster does not accept it: {error}")


def _callers_path(field: str) -> str:
    """The field as the caller knows it: what a request says of an object becomes its spec or its name."""
    path = field.removeprefix("spec.").removeprefix("metadata.")
    return "request" if path in ("", "<nil>") else path


def is_about_rights(error: kube.Forbidden) -> bool:
    """Whether this process lacks a right; else a quota or a policy refused, which is the caller's concern."""
    return " cannot " in str(error) and "in API group" in str(error)


def refuses_for_good(error: kube.KubeError) -> bool:
    """Whether trying again cannot help: the object itself is refused, and nothing was written."""
    return isinstance(error, kube.Invalid) or (isinstance(error, kube.Forbidden) and _is_refusal(error))


def _is_refusal(error: kube.Forbidden) -> bool:
    """Whether a quota or a policy says no. A quota that is new says for a moment that it has not counted yet."""
    return not is_about_rights(error) and "status unknown for quota" not in str(error)


@contextmanager
def in_product_words() -> Iterator[None]:
    """Around what is done for a caller: Kubernetes' refusals leave it as faults that the edge can answer."""
    try:
        yield
    except kube.KubeError as error:
        raise translated(error) from error
