"""What Kubernetes refuses, in the words of the product: the edge knows how to answer those."""

from collections.abc import Iterator
from contextlib import contextmanager

from gpu_runtime.contract.errors import Conflict, RuntimeFault, Unavailable
from gpu_runtime.kube import errors as kube


def translated(error: kube.KubeError) -> RuntimeFault:
    match error:
        case kube.Conflict() | kube.AlreadyExists():
            return Conflict(f"somebody else wrote at the same time; try again ({error})")
        case kube.Forbidden() if _is_refusal(error):
            return Conflict(f"the cluster refuses it: {error}")
        case kube.Invalid():
            return Conflict(f"the cluster does not accept it: {error}")
        case kube.ApiError(retry_after=wait):
            return Unavailable(f"Kubernetes cannot do this now: {error}", retry_after=wait)
    return Unavailable(f"Kubernetes cannot be reached: {error}")


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
