"""What Kubernetes refuses, and whether trying again can help."""

import pytest

from gpu_runtime.contract.errors import Conflict, Invalid, RuntimeFault, Unavailable
from gpu_runtime.kube import errors as kube
from gpu_runtime.kube.errors import Status
from gpu_runtime.runtime_api.kube_error_mapping import in_product_words, refuses_for_good, translated

RIGHTS = 'gpuunits.runtime.lokiwager.io is forbidden: User "a" cannot create resource "gpuunits" in API group "x"'
QUOTA = 'gpuunits.runtime.lokiwager.io "s" is forbidden: exceeded quota: q, requested: 1, used: 2, limited: 2'
NEW_QUOTA = 'gpuunits.runtime.lokiwager.io "s" is forbidden: status unknown for quota: q, resources: count/gpuunits'


def forbidden(message: str) -> kube.Forbidden:
    return kube.Forbidden(Status(code=403, message=message))


@pytest.mark.parametrize(
    ("error", "for_good", "fault"),
    [
        (forbidden(RIGHTS), False, Unavailable),
        (forbidden(QUOTA), True, Conflict),
        (forbidden(NEW_QUOTA), False, Unavailable),
        (kube.Invalid(Status(code=422, message="no")), True, Invalid),
        (kube.Conflict(Status(code=409, message="no")), False, Conflict),
        (kube.ServerFailure(Status(code=500, message="no")), False, Unavailable),
        (kube.Unreachable("no answer", sent=True), False, Unavailable),
    ],
)
def test_only_what_can_never_succeed_is_given_up(
    error: kube.KubeError, for_good: bool, fault: type[RuntimeFault]
) -> None:
    assert refuses_for_good(error) is for_good
    assert type(translated(error)) is fault
    with pytest.raises(fault), in_product_words():
        raise error
