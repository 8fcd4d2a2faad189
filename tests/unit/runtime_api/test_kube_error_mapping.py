"""What Kubernetes refuses, told to a caller who knows nothing of Kubernetes' objects."""

import pytest

from gpu_runtime.contract.errors import Conflict, Invalid, NotFound, RuntimeFault, TooLarge, Unavailable
from gpu_runtime.kube import errors as kube
from gpu_runtime.runtime_api.kube_error_mapping import fault_from_kube_error


def refusal(kind: type[kube.KubeApiError], code: int, message: str, *causes: tuple[str, str]) -> kube.KubeApiError:
    details = kube.StatusDetails(causes=tuple(kube.StatusCause(field=field, message=text) for field, text in causes))
    return kind(kube.ApiStatus(code=code, message=message, details=details))


NO_RIGHT = 'gpuunits is forbidden: User "x" cannot create resource "gpuunits" in API group "runtime.lokiwager.io"'

MAPPED_ERRORS: dict[str, tuple[kube.KubeError, type[RuntimeFault], str]] = {
    "a field of the spec": (
        refusal(kube.KubeInvalid, 422, "no", ("spec.template.ports[0].port", "must be at most 65535")),
        Invalid,
        "template.ports[0].port: must be at most 65535",
    ),
    "the name and the spec itself": (
        refusal(kube.KubeInvalid, 422, "no", ("metadata.name", "too long"), ("spec", "specName never changes")),
        Invalid,
        "name: too long; spec: specName never changes",
    ),
    "no field": (refusal(kube.KubeInvalid, 400, "bad"), Invalid, "request: the cluster does not accept it: bad"),
    "nothing in particular": (refusal(kube.KubeInvalid, 422, "no", ("<nil>", "odd")), Invalid, "request: odd"),
    "an object too large": (refusal(kube.KubeInvalid, 413, "3 MiB"), TooLarge, "3 MiB"),
    "a lost race": (refusal(kube.KubeConflict, 409, "changed"), Conflict, "try again (changed)"),
    "a name that is taken": (refusal(kube.KubeAlreadyExists, 409, "exists"), Conflict, "try again (exists)"),
    "a quota": (refusal(kube.KubeForbidden, 403, "exceeded quota: gpus"), Conflict, "exceeded quota: gpus"),
    "a missing right of ours": (refusal(kube.KubeForbidden, 403, NO_RIGHT), Unavailable, "cannot do this now"),
    "something unknown": (refusal(kube.KubeNotFound, 404, 'gpuunits "a" not found'), NotFound, "not found"),
    "a kind that is not installed": (refusal(kube.KubeNoKindMatch, 404, "404"), Unavailable, "cannot do this now"),
    "a server that fails": (refusal(kube.KubeServerError, 500, "etcd"), Unavailable, "etcd"),
    "no answer": (kube.KubeUnreachable("no answer", sent=True), Unavailable, "cannot be reached: no answer"),
    "an answer that cannot be read": (kube.KubeDecodeError("odd"), Unavailable, "cannot be read: odd"),
}


@pytest.mark.parametrize(("error", "kind", "words"), MAPPED_ERRORS.values(), ids=MAPPED_ERRORS)
def test_kube_error_maps_to_a_fault_with_a_message(error: kube.KubeError, kind: type[RuntimeFault], words: str) -> None:
    fault = fault_from_kube_error(error)
    assert type(fault) is kind
    assert words in fault.message


def test_retry_after_of_kubernetes_is_passed_on() -> None:
    fault = fault_from_kube_error(kube.KubeTooManyRequests(kube.ApiStatus(code=429, message="slow down"), 7.0))
    assert isinstance(fault, Unavailable)
    assert fault.retry_after == 7.0
