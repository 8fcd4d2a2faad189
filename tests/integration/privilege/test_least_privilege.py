"""Every process has the rights that it uses, and no others.

The platform runs as it is shipped, every process with the token of its own account, and is made to do all it can do.
What the API server was asked about each account is then held against what the roles give it.
"""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from localcluster.nats_server import NatsServer
from localcluster.supervisor_client import ProcessFailed
from tests.integration.controller_manager.conftest import Object
from tests.integration.privilege import acts
from tests.integration.privilege.overhearing import PLATFORM
from tests.integration.privilege.platform import ELSEWHERE, SYSTEM, Platform, running_platform
from tests.integration.privilege.rights import Right, bound, complaints, granted

PROCESSES = ("activator", "controller-manager", "runtime-api")
ROLES = "clusterroles,clusterrolebindings,roles,rolebindings"


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory, nats: NatsServer) -> Iterator[Platform]:
    """A platform that has done everything once."""
    with running_platform(tmp_path_factory.mktemp("privilege"), nats.account()) as platform:
        parts = (acts.callers_ask_the_api, acts.the_world_drifts, acts.functions_are_called)
        with ThreadPoolExecutor() as stage:
            for played in [stage.submit(part, platform) for part in parts]:
                played.result()
        acts.the_collector_overlooks(platform)
        yield platform


@pytest.mark.parametrize("process", PROCESSES)
def test_a_process_has_the_rights_that_it_uses_and_no_others(lived: Platform, process: str) -> None:
    rights, asked = granted(lived.all(ROLES), process), lived.heard.asked[process]
    found = complaints(rights, asked)
    assert not found, f"the rights of {process}:\n" + "\n".join(found)
    for right in rights:
        assert complaints(rights - {right}, asked), f"nothing is missing without this right: {right}"


def test_rbac_refuses_nothing_that_a_process_asks_for(lived: Platform) -> None:
    assert lived.heard.refusals() == []


def test_nobody_else_has_rights_or_asks_for_any(lived: Platform) -> None:
    assert bound(lived.all(ROLES)) == {f"ServiceAccount/{SYSTEM}/{process}" for process in PROCESSES}
    assert lived.heard.asked.keys() == set(PROCESSES)


def test_only_pods_of_these_processes_have_a_token(lived: Platform) -> None:
    """The pods of the platform as it is installed, and those that it made: of stock, units, workers and pools."""
    pods = lived.all("pods")
    assert {_account(pod) for pod in pods if _has_token(pod)} == {f"{SYSTEM}/{process}" for process in PROCESSES}
    without = [pod for pod in pods if not _has_token(pod)]
    assert f"{SYSTEM}/result-store" in map(_account, without)
    assert {pod["metadata"]["namespace"] for pod in without} >= {SYSTEM, "runtime-stock", ELSEWHERE}
    assert any(each["name"] == "worker-sidecar" for pod in without for each in pod["spec"].get("initContainers", ()))


def test_who_has_no_rights_is_refused_and_that_is_heard(lived: Platform) -> None:
    """The last one here: it leaves its words behind."""
    with pytest.raises(
        ProcessFailed, match=re.escape(f'User "{PLATFORM}result-store" cannot list resource "gpuunits"')
    ):
        lived.plane.kubectl("get", "gpuunits", f"--namespace={ELSEWHERE}", f"--as={PLATFORM}result-store")
    question = Right("gpuunits.runtime.lokiwager.io", "list", ELSEWHERE)
    assert question in lived.heard.asked["result-store"]
    assert question in lived.heard.refused["result-store"]


def _account(pod: Object) -> str:
    return f"{pod['metadata']['namespace']}/{pod['spec']['serviceAccountName']}"


def _has_token(pod: Object) -> bool:
    projected = [each["projected"] for each in pod["spec"].get("volumes", ()) if "projected" in each]
    return any("serviceAccountToken" in source for each in projected for source in each["sources"])
