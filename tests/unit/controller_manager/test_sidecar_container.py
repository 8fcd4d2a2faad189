"""The worker sidecar in the pod of a unit that serves a function, and the NetworkPolicy of units."""

from typing import Any

import msgspec
import pytest

from gpu_runtime.contract.crd.conditions import ReadyReason
from gpu_runtime.contract.crd.well_known import Label
from gpu_runtime.controller_manager.gpu_unit.children.deployment import deployment
from gpu_runtime.controller_manager.gpu_unit.children.network_policy import network_policy
from gpu_runtime.controller_manager.gpu_unit.children.sidecar import DRAIN_SIGNAL_NAME, SETTINGS_ANNOTATION
from gpu_runtime.controller_manager.gpu_unit.rules import UNIT_RULES, first_violation
from gpu_runtime.controller_manager.settings import ControllerManagerSettings, EgressSettings, ServerlessSettings
from gpu_runtime.controller_manager.workload.namespace_isolation import WORKER_EGRESS_POLICY, isolation_policies
from gpu_runtime.process.settings import parse_settings
from gpu_runtime.process.shared_settings import NatsSettings
from gpu_runtime.worker_sidecar.main import DRAIN_SIGNAL
from gpu_runtime.worker_sidecar.settings import WorkerSidecarSettings
from tests.unit.controller_manager.controller_objects import PORTS, SETTINGS, observed_unit, unit

FRAMEWORK = {"socketPath": "/run/user/my.sock", "invokePath": "/call", "healthPath": "/alive"}
FUNCTION = {"enabled": True, "requestID": "double", "concurrency": 3, "framework": FRAMEWORK}


def settings(**changes: Any) -> ControllerManagerSettings:
    return msgspec.structs.replace(SETTINGS, serverless=ServerlessSettings(**changes))


def template(serverless: Any = FUNCTION, with_settings: ControllerManagerSettings = SETTINGS, **spec: Any) -> Any:
    observed = observed_unit(unit(serverless=serverless, **spec), settings=with_settings, function_id="id-1")
    return deployment(observed)["spec"]["template"]


def containers(**options: Any) -> tuple[Any, Any]:
    """Return the sidecar container and the user's container."""
    pod = template(**options)["spec"]
    return pod["initContainers"][0], pod["containers"][0]


@pytest.mark.parametrize("serverless", [None, {"enabled": False, "requestID": "double"}])
def test_unit_without_serverless_has_no_sidecar(serverless: Any) -> None:
    plain = template(serverless)
    assert plain["spec"]["initContainers"] == []
    assert plain["spec"]["volumes"] == []
    assert plain["spec"]["terminationGracePeriodSeconds"] == 30
    assert "annotations" not in plain["metadata"]
    assert Label.NATS_ACCESS not in plain["metadata"]["labels"]
    assert "lifecycle" not in plain["spec"]["containers"][0]


def test_sidecar_settings_annotation_is_valid() -> None:
    nats = NatsSettings(urls=("nats://nats:4222",), user="worker", password_file="/etc/gpu-runtime-nats/password")  # noqa: S106
    annotation = template(with_settings=settings(nats=nats))["metadata"]["annotations"][SETTINGS_ANNOTATION]
    parsed = parse_settings(annotation, WorkerSidecarSettings)
    assert (parsed.function_id, parsed.request_id) == ("id-1", "double")
    assert (parsed.worker, parsed.namespace) == ("web", "runtime-instance")
    assert parsed.concurrency == 3
    assert parsed.nats == nats
    assert (parsed.framework.invoke_path, parsed.framework.health_path) == ("/call", "/alive")
    assert (parsed.health.port, parsed.drain_timeout_seconds) == (20257, 300)


def test_socket_volume_is_mounted_into_both_containers() -> None:
    sidecar, main = containers(gpu=1)
    (mount,) = main["volumeMounts"]
    assert mount["mountPath"] == "/run/user"
    (volume,) = [each for each in template()["spec"]["volumes"] if each["name"] == mount["name"]]
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Mi"}
    parsed = parse_settings(template()["metadata"]["annotations"][SETTINGS_ANNOTATION], WorkerSidecarSettings)
    (directory,) = [each["mountPath"] for each in sidecar["volumeMounts"] if each["name"] == mount["name"]]
    assert parsed.framework.socket_path == f"{directory}/my.sock"
    assert {each["name"]: each["value"] for each in main["env"]} == {
        "GPU_RUNTIME_SOCKET": "/run/user/my.sock",
        "GPU_RUNTIME_INVOKE_PATH": "/call",
        "GPU_RUNTIME_HEALTH_PATH": "/alive",
        "GPU_RUNTIME_CONCURRENCY": "3",
    }


def test_platform_environment_overrides_user_environment() -> None:
    envs = [{"name": "GPU_RUNTIME_SOCKET", "value": "/other"}, {"name": "MINE", "value": "1"}]
    _, main = containers(gpu=1, template={"envs": envs})
    env = [(each["name"], each["value"]) for each in main["env"]]
    assert env[:2] == [("MINE", "1"), ("GPU_RUNTIME_SOCKET", "/run/user/my.sock")]
    assert len(env) == 5


def test_sidecar_is_a_restricted_native_sidecar_container() -> None:
    sidecar, _ = containers()
    assert (sidecar["image"], sidecar["restartPolicy"]) == ("stock:1", "Always")
    security = sidecar["securityContext"]
    assert (security["runAsNonRoot"], security["readOnlyRootFilesystem"]) == (True, True)
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert all(mount["readOnly"] for mount in sidecar["volumeMounts"])


def test_pre_stop_hook_waits_for_the_drain() -> None:
    pod = template()["spec"]
    assert pod["containers"][0]["lifecycle"]["preStop"]["httpGet"] == {"path": "/drained", "port": 20257}
    assert pod["initContainers"][0]["lifecycle"]["preStop"]["exec"]["command"] == ["sh", "-c", "kill -USR1 1"]
    assert DRAIN_SIGNAL.name == f"SIG{DRAIN_SIGNAL_NAME}"
    assert pod["terminationGracePeriodSeconds"] > 300


def test_nats_credentials_are_mounted_only_into_the_sidecar() -> None:
    sidecar, main = containers(with_settings=settings(credentials_secret="nats-credentials"))  # noqa: S106
    pod = template(with_settings=settings(credentials_secret="nats-credentials"))["spec"]  # noqa: S106
    (volume,) = [each["name"] for each in pod["volumes"] if each.get("secret") == {"secretName": "nats-credentials"}]
    assert volume in [mount["name"] for mount in sidecar["volumeMounts"]]
    assert volume not in [mount["name"] for mount in main["volumeMounts"]]


def test_sidecar_port_is_rejected_only_for_serverless_units() -> None:
    ports = {"ports": [{"name": "http", "port": 20257}]}
    blocked = first_violation(UNIT_RULES, observed_unit(unit(serverless=FUNCTION, template=ports)))
    assert blocked is not None
    assert (blocked.reason, "20257" in blocked.message) == (ReadyReason.INVALID_SPEC, True)
    assert first_violation(UNIT_RULES, observed_unit(unit(template=ports))) is None


def test_network_policy_opens_only_declared_ports() -> None:
    policy = network_policy(observed_unit(unit(template={"ports": PORTS})))
    assert policy
    (rule,) = policy["spec"]["ingress"]
    assert [(each["port"], each["protocol"]) for each in rule["ports"]] == [(80, "TCP"), (80, "UDP")]
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    assert policy["spec"]["podSelector"]["matchLabels"] == {Label.UNIT: "web"}
    assert network_policy(observed_unit(unit())) is None  # the policy of the namespace denies all ports
    assert network_policy(observed_unit(unit("runtime-stock", template={"ports": PORTS}))) is None


def test_restricted_egress_allows_only_dns_and_nats() -> None:
    assert isolation_policies("runtime-instance", EgressSettings())[WORKER_EGRESS_POLICY] is None
    policies = isolation_policies("runtime-instance", EgressSettings(restrict=True))
    policy = policies[WORKER_EGRESS_POLICY]
    assert policy
    assert policy["spec"]["policyTypes"] == ["Egress"]
    selector = policy["spec"]["podSelector"]["matchLabels"].items()
    assert selector <= template()["metadata"]["labels"].items()
    assert not selector <= template(None)["metadata"]["labels"].items()
    dns, nats = policy["spec"]["egress"]
    assert {each["port"] for each in dns["ports"]} == {53}
    assert ([each["port"] for each in nats["ports"]], len(nats["to"])) == ([4222], 1)
