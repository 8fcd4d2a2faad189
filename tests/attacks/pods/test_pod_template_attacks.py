"""Attacks of clients that can change Deployments or GPUUnits, but not the platform."""

from typing import Any

import pytest
from lightkube import ApiError
from lightkube.resources.apps_v1 import Deployment

from gpu_runtime.contract.crd.gpu_unit import GPUUnitSpec
from gpu_runtime.contract.crd.template import EnvVar, Template
from gpu_runtime.contract.crd.well_known import UnitRole
from gpu_runtime.contract.validation import unit_errors
from localcluster.supervisor_client import wait_until
from tests.integration.controller_manager.conftest import POOL, UNIT, ControllerCluster, Object

SPEC: Object = {"specName": "g1.1", "image": "python", "gpu": 1}
CONTAINER = "/spec/template/spec/containers/0"
ESCAPES: Object = {
    "/spec/template/spec/hostPID": True,
    "/spec/template/spec/shareProcessNamespace": True,
    "/spec/template/spec/serviceAccountName": "default",
    f"{CONTAINER}/securityContext/runAsUser": 0,
    f"{CONTAINER}/securityContext/capabilities/add": ["NET_RAW", "SYS_ADMIN"],
    f"{CONTAINER}/envFrom": [{"secretRef": {"name": "platform"}}],
}
HOST_NETWORK: list[Object] = [
    {"op": "add", "path": "/spec/template/spec/hostNetwork", "value": True},
    # The API server refuses a pod with hostNetwork and this sysctl.
    {"op": "remove", "path": "/spec/template/spec/securityContext/sysctls"},
]
PRIVILEGED: list[Object] = [
    {"op": "add", "path": f"{CONTAINER}/securityContext/privileged", "value": True},
    {"op": "replace", "path": f"{CONTAINER}/securityContext/allowPrivilegeEscalation", "value": True},
]


def test_fields_with_which_another_client_opens_a_pod_are_removed(cluster: ControllerCluster, namespace: str) -> None:
    cluster.create(UNIT, namespace, "web", SPEC)
    cluster.wait_reason(UNIT, namespace, "web", "UnitReady")
    changes: list[list[Object]]
    changes = [[{"op": "add", "path": path, "value": value}] for path, value in ESCAPES.items()]
    for operations in [*changes, HOST_NETWORK, PRIVILEGED]:
        before = template(cluster, namespace)
        cluster.json_patch(Deployment, namespace, "web", *operations)
        wait_until(lambda: template(cluster, namespace) == before, 60, lambda: f"{operations} was not reverted")  # noqa: B023


def template(cluster: ControllerCluster, namespace: str) -> Any:
    found = cluster.get(Deployment, namespace, "web")
    assert found
    return found["spec"]["template"]


SELECTORS = (
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_IMEX_CHANNELS",
    "NVIDIA_MIG_CONFIG_DEVICES",
    "NVIDIA_GDS",
    "AMD_VISIBLE_DEVICES",
    "HABANA_VISIBLE_DEVICES",
    "ASCEND_VISIBLE_DEVICES",
    "OTHER_VISIBLE_DEVICES",
)
ALLOWED = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "MY_VISIBLE_DEVICES_2")


@pytest.mark.parametrize("name", SELECTORS)
def test_variable_that_selects_devices_is_refused(cluster: ControllerCluster, namespace: str, name: str) -> None:
    template = {"envs": [{"name": name, "value": "all"}]}
    for kind, fields in ((UNIT, {}), (POOL, {"replicas": 0})):
        with pytest.raises(ApiError, match="remove this variable"):
            cluster.create(kind, namespace, "thief", {**SPEC, **fields, "template": template})
    assert validation_errors(name)


@pytest.mark.parametrize("name", ALLOWED)
def test_variable_that_selects_no_devices_is_accepted(cluster: ControllerCluster, namespace: str, name: str) -> None:
    template = {"envs": [{"name": name, "value": "0"}]}
    cluster.create(POOL, namespace, "warm", {**SPEC, "replicas": 0, "template": template})
    assert not validation_errors(name)


def validation_errors(name: str) -> list[str]:
    """Return the errors with which the runtime API and the controller manager refuse the variable."""
    spec = GPUUnitSpec(spec_name="g1.1", image="python", template=Template(envs=(EnvVar(name=name, value="0"),)))
    return [str(error) for error in unit_errors(spec, UnitRole.ACTIVE)]
