"""Every process has exactly the Kubernetes rights that it uses.

The platform runs with its installed manifests. Every process uses the token of its own service account. The scenarios
make the processes use all their rights. The test then compares the recorded authorization requests of each account with
the rights that its roles grant.
"""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from gpu_runtime.contract.crd.well_known import INSTANCE_NAMESPACE
from localcluster.nats_server import NatsServer
from localcluster.supervisor_client import ProcessFailed
from tests.integration.controller_manager.conftest import Object
from tests.integration.privilege import platform_scenarios
from tests.integration.privilege.audited_platform import (
    OTHER_NAMESPACE,
    SYSTEM_NAMESPACE,
    AuditedPlatform,
    running_audited_platform,
)
from tests.integration.privilege.authorization_recorder import PLATFORM_USER_PREFIX
from tests.integration.privilege.rbac_rights import Right, bound_subjects, granted_rights, right_findings

PROCESSES = ("activator", "controller-manager", "runtime-api")
ROLES = "clusterroles,clusterrolebindings,roles,rolebindings"


@pytest.fixture(scope="module")
def exercised_platform(tmp_path_factory: pytest.TempPathFactory, nats: NatsServer) -> Iterator[AuditedPlatform]:
    """A platform on which all scenarios have run."""
    with running_audited_platform(tmp_path_factory.mktemp("privilege"), nats.create_account()) as platform:
        scenarios = (
            platform_scenarios.run_api_requests,
            platform_scenarios.run_drift_and_deletion,
            platform_scenarios.run_invocations,
        )
        with ThreadPoolExecutor() as executor:
            for future in [executor.submit(scenario, platform) for scenario in scenarios]:
                future.result()
        platform_scenarios.run_adoptions(platform)  # it pauses the controller manager
        platform_scenarios.run_orphan_collection(platform)
        yield platform


@pytest.mark.parametrize("process", PROCESSES)
def test_process_has_exactly_the_rights_it_uses(exercised_platform: AuditedPlatform, process: str) -> None:
    granted = granted_rights(exercised_platform.list_objects(ROLES), process)
    copies = {right for right in granted if right.namespace == OTHER_NAMESPACE}
    rights = granted - copies
    # A right that a process uses in the namespace with the copied roles is a right of the namespace of units.
    requested = {
        replace(right, namespace=INSTANCE_NAMESPACE) if any(copy.covers(right) for copy in copies) else right
        for right in exercised_platform.authorization.requested[process]
    }
    findings = right_findings(rights, requested)
    assert not findings, f"the rights of {process}:\n" + "\n".join(findings)
    for right in rights:
        assert right_findings(rights - {right}, requested), f"no finding without this right: {right}"


def test_rbac_rejects_no_request_of_a_process(exercised_platform: AuditedPlatform) -> None:
    assert exercised_platform.authorization.denials() == []


def test_no_other_subject_has_role_bindings(exercised_platform: AuditedPlatform) -> None:
    assert bound_subjects(exercised_platform.list_objects(ROLES)) == {
        f"ServiceAccount/{SYSTEM_NAMESPACE}/{process}" for process in PROCESSES
    }
    assert exercised_platform.authorization.requested.keys() == set(PROCESSES)


def test_only_pods_of_these_processes_have_a_token(exercised_platform: AuditedPlatform) -> None:
    """The pods are those of the installed platform, and those of stock, units, workers and pools."""
    pods = exercised_platform.list_objects("pods")
    assert {_account(pod) for pod in pods if _has_token(pod)} == {
        f"{SYSTEM_NAMESPACE}/{process}" for process in PROCESSES
    }
    without = [pod for pod in pods if not _has_token(pod)]
    assert f"{SYSTEM_NAMESPACE}/result-store" in map(_account, without)
    assert {pod["metadata"]["namespace"] for pod in without} >= {SYSTEM_NAMESPACE, "runtime-stock", OTHER_NAMESPACE}
    assert any(each["name"] == "worker-sidecar" for pod in without for each in pod["spec"].get("initContainers", ()))


def test_rejected_access_is_recorded_by_the_webhook(exercised_platform: AuditedPlatform) -> None:
    authorization, process = exercised_platform.authorization, "result-store"
    with pytest.raises(
        ProcessFailed, match=re.escape(f'User "{PLATFORM_USER_PREFIX}{process}" cannot list resource "gpuunits"')
    ):
        exercised_platform.control_plane.kubectl(
            "get", "gpuunits", f"--namespace={OTHER_NAMESPACE}", f"--as={PLATFORM_USER_PREFIX}{process}"
        )
    # The request is removed from the recorder, because the other tests must find only requests of the platform.
    requested, denied = authorization.requested.pop(process), authorization.denied.pop(process)
    right = Right("gpuunits.runtime.lokiwager.io", "list", OTHER_NAMESPACE)
    assert right in requested
    assert right in denied


def _account(pod: Object) -> str:
    return f"{pod['metadata']['namespace']}/{pod['spec']['serviceAccountName']}"


def _has_token(pod: Object) -> bool:
    projected = [each["projected"] for each in pod["spec"].get("volumes", ()) if "projected" in each]
    return any("serviceAccountToken" in source for each in projected for source in each["sources"])
