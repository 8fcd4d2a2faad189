"""What a unit that serves a function has beside the user's container, and what of a unit can be reached."""

from typing import Any

import msgspec
import pytest

from gpu_runtime.contract.crd.conditions import Reason
from gpu_runtime.contract.crd.well_known import Label
from gpu_runtime.controller_manager.gpu_unit.children.deployment import deployment
from gpu_runtime.controller_manager.gpu_unit.children.network_policy import network_policy
from gpu_runtime.controller_manager.gpu_unit.children.sidecar import SETTINGS as SETTINGS_ANNOTATION
from gpu_runtime.controller_manager.gpu_unit.rules import UNIT_RULES, first_violation
from gpu_runtime.controller_manager.settings import ControllerManagerSettings, Egress, Serverless
from gpu_runtime.process.settings import parse
from gpu_runtime.process.shared_settings import Nats
from gpu_runtime.worker_sidecar.settings import WorkerSidecarSettings
from tests.unit.controller_manager.objects import PORTS, SETTINGS, seen, unit

FRAMEWORK = {"socketPath": "/run/user/my.sock", "invokePath": "/call", "healthPath": "/alive"}
FUNCTION = {"enabled": True, "requestID": "double", "concurrency": 3, "framework": FRAMEWORK}


def settings(**changes: Any) -> ControllerManagerSettings:
    return msgspec.structs.replace(SETTINGS, serverless=Serverless(**changes))


def template(serverless: Any = FUNCTION, with_settings: ControllerManagerSettings = SETTINGS, **spec: Any) -> Any:
    found = seen(unit(serverless=serverless, **spec), settings=with_settings)
    return deployment(found)["spec"]["template"]


def containers(**more: Any) -> tuple[Any, Any]:
    """The sidecar and the user's."""
    pod = template(**more)["spec"]
    return pod["initContainers"][0], pod["containers"][0]


@pytest.mark.parametrize("serverless", [None, {"enabled": False, "requestID": "double"}])
def test_a_unit_that_serves_no_function_has_nothing_beside_it(serverless: Any) -> None:
    plain = template(serverless)
    assert plain["spec"]["initContainers"] == []
    assert plain["spec"]["volumes"] == []
    assert "terminationGracePeriodSeconds" not in plain["spec"]
    assert "annotations" not in plain["metadata"]
    assert Label.SERVES not in plain["metadata"]["labels"]
    assert "lifecycle" not in plain["spec"]["containers"][0]


def test_the_settings_are_such_that_the_sidecar_reads_them() -> None:
    nats = Nats(urls=("nats://queue:4222",), user="worker", password_file="/etc/gpu-runtime-queue/password")  # noqa: S106
    said = template(with_settings=settings(nats=nats))["metadata"]["annotations"][SETTINGS_ANNOTATION]
    read = parse(said, WorkerSidecarSettings)
    assert (read.request_id, read.worker, read.namespace, read.concurrency) == ("double", "web", "runtime-instance", 3)
    assert read.nats == nats
    assert (read.framework.invoke_path, read.framework.health_path) == ("/call", "/alive")
    assert (read.endpoints.port, read.drain_seconds) == (20257, 300)


def test_both_containers_find_the_socket() -> None:
    sidecar, main = containers()
    (mount,) = main["volumeMounts"]
    assert mount["mountPath"] == "/run/user"
    said = parse(template()["metadata"]["annotations"][SETTINGS_ANNOTATION], WorkerSidecarSettings)
    (folder,) = [each["mountPath"] for each in sidecar["volumeMounts"] if each["name"] == mount["name"]]
    assert said.framework.socket_path == f"{folder}/my.sock"
    assert {each["name"]: each["value"] for each in main["env"]} == {
        "GPU_RUNTIME_SOCKET": "/run/user/my.sock",
        "GPU_RUNTIME_INVOKE_PATH": "/call",
        "GPU_RUNTIME_HEALTH_PATH": "/alive",
        "GPU_RUNTIME_CONCURRENCY": "3",
    }


def test_what_the_platform_says_of_the_socket_stands() -> None:
    envs = [{"name": "GPU_RUNTIME_SOCKET", "value": "/other"}, {"name": "MINE", "value": "1"}]
    _, main = containers(template={"envs": envs})
    said = [(each["name"], each["value"]) for each in main["env"]]
    assert said[:2] == [("MINE", "1"), ("GPU_RUNTIME_SOCKET", "/run/user/my.sock")]
    assert len(said) == 5


def test_the_sidecar_is_restricted_and_lives_as_long_as_the_pod() -> None:
    sidecar, _ = containers()
    assert (sidecar["image"], sidecar["restartPolicy"]) == ("stock:1", "Always")
    secured = sidecar["securityContext"]
    assert (secured["runAsNonRoot"], secured["readOnlyRootFilesystem"]) == (True, True)
    assert secured["allowPrivilegeEscalation"] is False
    assert secured["capabilities"] == {"drop": ["ALL"]}
    assert all(mount["readOnly"] for mount in sidecar["volumeMounts"])


def test_the_end_of_a_worker_waits_until_it_is_drained() -> None:
    pod = template()["spec"]
    assert pod["containers"][0]["lifecycle"]["preStop"]["httpGet"] == {"path": "/drain", "port": 20257}
    assert pod["terminationGracePeriodSeconds"] > 300


def test_the_queues_credentials_are_the_sidecars_alone() -> None:
    sidecar, main = containers(with_settings=settings(credentials_secret="queue"))  # noqa: S106
    pod = template(with_settings=settings(credentials_secret="queue"))["spec"]  # noqa: S106
    (volume,) = [each["name"] for each in pod["volumes"] if each.get("secret") == {"secretName": "queue"}]
    assert volume in [mount["name"] for mount in sidecar["volumeMounts"]]
    assert volume not in [mount["name"] for mount in main["volumeMounts"]]


def test_a_port_of_the_sidecar_is_refused_only_where_there_is_one() -> None:
    ports = {"ports": [{"name": "http", "port": 20257}]}
    blocked = first_violation(UNIT_RULES, seen(unit(serverless=FUNCTION, template=ports)))
    assert blocked is not None
    assert (blocked.reason, "20257" in blocked.message) == (Reason.INVALID_SPEC, True)
    assert first_violation(UNIT_RULES, seen(unit(template=ports))) is None


def policy(**more: Any) -> Any:
    given = {name: more.pop(name) for name in ("settings",) if name in more}
    wanted = network_policy(seen(unit(**more), **given))
    assert wanted
    return wanted["spec"]


def test_only_declared_ports_are_open() -> None:
    (rule,) = policy(template={"ports": PORTS})["ingress"]
    assert [(each["port"], each["protocol"]) for each in rule["ports"]] == [(80, "TCP"), (80, "UDP")]
    assert policy()["ingress"] == []
    assert policy()["policyTypes"] == ["Ingress"]
    assert policy()["podSelector"]["matchLabels"] == {Label.UNIT: "web"}
    assert network_policy(seen(unit("runtime-stock", template={"ports": PORTS}))) is None


def test_workers_are_limited_to_the_queue_where_that_is_wanted() -> None:
    limited = settings(egress=Egress(limited=True))
    assert policy(serverless=FUNCTION)["policyTypes"] == ["Ingress"]
    assert policy(settings=limited)["policyTypes"] == ["Ingress"]
    worker = policy(serverless=FUNCTION, settings=limited)
    assert worker["policyTypes"] == ["Ingress", "Egress"]
    dns, queue = worker["egress"]
    assert {each["port"] for each in dns["ports"]} == {53}
    assert ([each["port"] for each in queue["ports"]], len(queue["to"])) == ([4222], 1)
