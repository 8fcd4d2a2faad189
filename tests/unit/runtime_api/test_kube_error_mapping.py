"""Errors of Kubernetes become faults in terms of the request, without fields of Kubernetes objects."""

import pytest

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
from gpu_runtime.kube import errors as kube
from gpu_runtime.runtime_api.kube_error_mapping import fault_from_kube_error


def api_error(kind: type[kube.KubeApiError], code: int, message: str, *causes: tuple[str, str]) -> kube.KubeApiError:
    details = kube.StatusDetails(causes=tuple(kube.StatusCause(field=field, message=text) for field, text in causes))
    return kind(kube.ApiStatus(code=code, message=message, details=details))


RBAC_DENIAL = 'gpuunits is forbidden: User "x" cannot create resource "gpuunits" in API group "runtime.lokiwager.io"'

MAPPED_ERRORS: dict[str, tuple[kube.KubeError, type[RuntimeFault], str]] = {
    "a field of the spec": (
        api_error(kube.KubeInvalid, 422, "no", ("spec.template.ports[0].port", "must be at most 65535")),
        Invalid,
        "template.ports[0].port: must be at most 65535",
    ),
    "the name and the spec itself": (
        api_error(kube.KubeInvalid, 422, "no", ("metadata.name", "too long"), ("spec", "specName never changes")),
        Invalid,
        "name: too long; spec: specName never changes",
    ),
    "no field in the error": (api_error(kube.KubeInvalid, 400, "bad"), Invalid, "request: the cluster rejects it: bad"),
    "a cause without a field": (api_error(kube.KubeInvalid, 422, "no", ("<nil>", "odd")), Invalid, "request: odd"),
    "an object too large": (api_error(kube.KubeInvalid, 413, "3 MiB"), TooLarge, "3 MiB"),
    "a write conflict": (
        api_error(kube.KubeConflict, 409, "changed"),
        WriteConflict,
        "send the request again (changed)",
    ),
    "an existing name": (
        api_error(kube.KubeAlreadyExists, 409, "exists"),
        WriteConflict,
        "send the request again (exists)",
    ),
    "a quota": (api_error(kube.KubeForbidden, 403, "exceeded quota: gpus"), QuotaExceeded, "exceeded quota: gpus"),
    "a policy": (api_error(kube.KubeForbidden, 403, "denied by policy"), AdmissionDenied, "denied by policy"),
    "a missing permission of this process": (
        api_error(kube.KubeForbidden, 403, RBAC_DENIAL),
        Unavailable,
        "cannot process the request now",
    ),
    "an unknown object": (api_error(kube.KubeNotFound, 404, 'gpuunits "a" not found'), NotFound, "not found"),
    "a kind that is not installed": (
        api_error(kube.KubeNoKindMatch, 404, "404"),
        Unavailable,
        "cannot process the request now",
    ),
    "a server error": (api_error(kube.KubeServerError, 500, "etcd"), Unavailable, "etcd"),
    "no answer": (kube.KubeUnreachable("no answer", sent=True), Unavailable, "cannot be reached: no answer"),
    "an undecodable response": (kube.KubeDecodeError("odd"), Unavailable, "cannot be decoded: odd"),
}


@pytest.mark.parametrize(("error", "fault_type", "text"), MAPPED_ERRORS.values(), ids=MAPPED_ERRORS)
def test_kube_error_maps_to_a_fault_with_a_message(
    error: kube.KubeError, fault_type: type[RuntimeFault], text: str
) -> None:
    fault = fault_from_kube_error(error)
    assert type(fault) is fault_type
    assert text in fault.message


def test_retry_after_of_kubernetes_is_passed_on() -> None:
    fault = fault_from_kube_error(kube.KubeTooManyRequests(kube.ApiStatus(code=429, message="slow down"), 7.0))
    assert isinstance(fault, Unavailable)
    assert fault.retry_after == 7.0
