"""Which errors of Kubernetes are permanent, so that a retry cannot succeed."""

import pytest

from gpu_runtime.contract.errors import (
    AdmissionDenied,
    Invalid,
    QuotaExceeded,
    RuntimeFault,
    Unavailable,
    WriteConflict,
)
from gpu_runtime.kube import errors as kube
from gpu_runtime.kube.errors import ApiStatus
from gpu_runtime.runtime_api.kube_error_mapping import (
    fault_from_kube_error,
    is_permanent_rejection,
)

RBAC_DENIAL = 'gpuunits.runtime.lokiwager.io is forbidden: User "a" cannot create resource "gpuunits" in API group "x"'
QUOTA = 'gpuunits.runtime.lokiwager.io "s" is forbidden: exceeded quota: q, requested: 1, used: 2, limited: 2'
WEBHOOK = 'admission webhook "images.example.com" denied the request: only signed images'
NEW_QUOTA = 'gpuunits.runtime.lokiwager.io "s" is forbidden: status unknown for quota: q, resources: count/gpuunits'


def forbidden(message: str) -> kube.KubeForbidden:
    return kube.KubeForbidden(ApiStatus(code=403, message=message))


@pytest.mark.parametrize(
    ("error", "permanent", "fault"),
    [
        (forbidden(RBAC_DENIAL), False, Unavailable),
        (forbidden(QUOTA), True, QuotaExceeded),
        (forbidden(WEBHOOK), True, AdmissionDenied),
        (forbidden(NEW_QUOTA), False, Unavailable),
        (kube.KubeInvalid(ApiStatus(code=422, message="no")), True, Invalid),
        (kube.KubeConflict(ApiStatus(code=409, message="no")), False, WriteConflict),
        (kube.KubeServerError(ApiStatus(code=500, message="no")), False, Unavailable),
        (kube.KubeUnreachable("no answer", sent=True), False, Unavailable),
    ],
)
def test_permanent_kube_errors_are_not_retried(
    error: kube.KubeError, permanent: bool, fault: type[RuntimeFault]
) -> None:
    assert is_permanent_rejection(error) is permanent
    assert type(fault_from_kube_error(error)) is fault
