"""What Kubernetes refuses, told to a caller who knows nothing of Kubernetes' objects."""

import pytest

from gpu_runtime.contract.errors import Conflict, Invalid, NotFound, RuntimeFault, TooLarge, Unavailable
from gpu_runtime.kube import errors as kube
from gpu_runtime.runtime_api.kube_error_mapping import translated


def refusal(kind: type[kube.ApiError], code: int, message: str, *causes: tuple[str, str]) -> kube.ApiError:
    details = kube.Details(causes=tuple(kube.Cause(field=field, message=text) for field, text in causes))
    return kind(kube.Status(code=code, message=message, details=details))


NO_RIGHT = 'gpuunits is forbidden: User "x" cannot create resource "gpuunits" in API group "runtime.lokiwager.io"'

TOLD: dict[str, tuple[kube.KubeError, type[RuntimeFault], str]] = {
    "a field of the spec": (
        refusal(kube.Invalid, 422, "no", ("spec.template.ports[0].port", "must be at most 65535")),
        Invalid,
        "template.ports[0].port: must be at most 65535",
    ),
    "the name and the spec itself": (
        refusal(kube.Invalid, 422, "no", ("metadata.name", "too long"), ("spec", "specName never changes")),
        Invalid,
        "name: too long; spec: specName never changes",
    ),
    "no field": (refusal(kube.Invalid, 400, "bad"), Invalid, "request: the cluster does not accept it: bad"),
    "nothing in particular": (refusal(kube.Invalid, 422, "no", ("<nil>", "odd")), Invalid, "request: odd"),
    "an object too large": (refusal(kube.Invalid, 413, "3 MiB"), TooLarge, "3 MiB"),
    "a lost race": (refusal(kube.Conflict, 409, "changed"), Conflict, "try again (changed)"),
    "a name that is taken": (refusal(kube.AlreadyExists, 409, "exists"), Conflict, "try again (exists)"),
    "a quota": (refusal(kube.Forbidden, 403, "exceeded quota: gpus"), Conflict, "exceeded quota: gpus"),
    "a missing right of ours": (refusal(kube.Forbidden, 403, NO_RIGHT), Unavailable, "cannot do this now"),
    "something unknown": (refusal(kube.NotFound, 404, 'gpuunits "a" not found'), NotFound, "not found"),
    "a kind that is not installed": (refusal(kube.NotServed, 404, "404"), Unavailable, "cannot do this now"),
    "a server that fails": (refusal(kube.ServerFailure, 500, "etcd"), Unavailable, "etcd"),
    "no answer": (kube.Unreachable("no answer", sent=True), Unavailable, "cannot be reached: no answer"),
    "an answer that cannot be read": (kube.Unreadable("odd"), Unavailable, "cannot be read: odd"),
}


@pytest.mark.parametrize(("error", "kind", "words"), TOLD.values(), ids=TOLD)
def test_a_refusal_of_kubernetes_in_the_callers_words(
    error: kube.KubeError, kind: type[RuntimeFault], words: str
) -> None:
    fault = translated(error)
    assert type(fault) is kind
    assert words in fault.message


def test_the_time_that_kubernetes_asks_for_is_passed_on() -> None:
    fault = translated(kube.TooManyRequests(kube.Status(code=429, message="slow down"), 7.0))
    assert isinstance(fault, Unavailable)
    assert fault.retry_after == 7.0
