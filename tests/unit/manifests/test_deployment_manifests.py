"""Deployed manifests: every pod is restricted, every process is scraped, and a node drain keeps a replica running."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_runtime.activator.settings import ActivatorSettings
from gpu_runtime.controller_manager.settings import ControllerManagerSettings, SidecarContainerSettings
from gpu_runtime.manifests.rbac_rules import PROCESSES as PROCESSES_WITH_PERMISSIONS
from gpu_runtime.process.settings import BaseSettings, load_settings
from gpu_runtime.result_store.settings import ResultStoreSettings
from gpu_runtime.runtime_api.settings import RuntimeAPISettings

Object = dict[str, Any]

CONFIG_DIR = Path(__file__).parents[3] / "config"
PRODUCTION_DIR = CONFIG_DIR / "overlays" / "production"
BASES = ("activator", "manager", "nats", "network-policy", "prometheus", "result-store", "runtime-api")
PART_OF = {"app.kubernetes.io/part-of": "gpu-runtime"}
NAME = "app.kubernetes.io/name"


def manifests(*folders: str) -> list[Object]:
    paths = [path for folder in folders for path in sorted((CONFIG_DIR / folder).glob("*.yaml"))]
    documents = [each for path in paths for each in yaml.safe_load_all(path.read_text())]
    return [each for each in documents if "metadata" in each]


MANIFESTS = manifests(*BASES)
WORKLOADS = [each for each in MANIFESTS if each["kind"] in {"Deployment", "StatefulSet"}]
PROCESSES = [each for each in WORKLOADS if each["kind"] == "Deployment"]


def of_kind(kind: str) -> list[Object]:
    return [each for each in MANIFESTS if each["kind"] == kind]


def name_of(manifest: Object) -> str:
    return str(manifest["metadata"]["name"])


def pod_of(workload: Object) -> Object:
    pod: Object = workload["spec"]["template"]["spec"]
    return pod


def violations(pod: Object) -> Iterator[str]:
    """Yield the violations of the Pod Security Standard `restricted`, and a writable root file system."""
    pod_context = pod.get("securityContext", {})
    if any(pod.get(each) for each in ("hostNetwork", "hostPID", "hostIPC")):
        yield "uses a host namespace"
    if kinds := {key for each in pod.get("volumes", []) for key in each} - ALLOWED_VOLUMES:
        yield f"volumes {sorted(kinds)}"
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        context = pod_context | container.get("securityContext", {})
        requirements = {
            "runAsNonRoot": context.get("runAsNonRoot") is True,
            "runAsUser": context.get("runAsUser") != 0,
            "seccompProfile": context.get("seccompProfile", {}).get("type") in {"RuntimeDefault", "Localhost"},
            "allowPrivilegeEscalation": context.get("allowPrivilegeEscalation") is False,
            "readOnlyRootFilesystem": context.get("readOnlyRootFilesystem") is True,
            "capabilities": context.get("capabilities") == {"drop": ["ALL"]},
            "privileged": not context.get("privileged"),
            "hostPort": not any("hostPort" in port for port in container.get("ports", [])),
        }
        yield from (f"{container['name']}: {requirement}" for requirement, met in requirements.items() if not met)


ALLOWED_VOLUMES = {
    "name", "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip


def test_every_process_has_a_deployment() -> None:
    assert {name_of(each) for each in PROCESSES} == {"activator", "controller-manager", "result-store", "runtime-api"}


@pytest.mark.parametrize("workload", WORKLOADS, ids=name_of)
def test_pod_is_restricted_and_has_probes_and_resource_limits(workload: Object) -> None:
    pod = pod_of(workload)
    assert list(violations(pod)) == []
    for container in pod["containers"]:
        assert {"readinessProbe", "livenessProbe"} <= container.keys()
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert "memory" in container["resources"]["limits"]


def test_unrestricted_pod_is_detected() -> None:
    pod = pod_of(PROCESSES[0])
    root = pod | {"securityContext": {"runAsUser": 0}, "volumes": [{"name": "node", "hostPath": {"path": "/"}}]}
    found = " ".join(violations(root))
    for violation in ("hostPath", "runAsNonRoot", "runAsUser", "seccompProfile"):
        assert violation in found


@pytest.mark.parametrize("process", PROCESSES, ids=name_of)
def test_process_has_its_own_service_account(process: Object) -> None:
    assert pod_of(process)["serviceAccountName"] == name_of(process)


@pytest.mark.parametrize("workload", WORKLOADS, ids=name_of)
def test_process_without_rbac_rules_mounts_no_token(workload: Object) -> None:
    pod, has_permissions = pod_of(workload), name_of(workload) in {each.name for each in PROCESSES_WITH_PERMISSIONS}
    projected = [each["projected"]["sources"] for each in pod["volumes"] if "projected" in each]
    mounts_token = any("serviceAccountToken" in source for sources in projected for source in sources)
    assert (pod.get("automountServiceAccountToken", True), mounts_token and not has_permissions) == (
        has_permissions,
        False,
    )


@pytest.mark.parametrize("process", PROCESSES, ids=name_of)
def test_process_is_labeled_with_its_name(process: Object) -> None:
    labels = {NAME: name_of(process)} | PART_OF
    assert process["metadata"]["labels"] == labels
    assert process["spec"]["template"]["metadata"]["labels"] == labels
    assert process["spec"]["selector"]["matchLabels"] == {NAME: name_of(process)}


@pytest.mark.parametrize("process", PROCESSES, ids=name_of)
def test_replicas_are_spread_and_protected_by_a_disruption_budget(process: Object) -> None:
    name, several = name_of(process), process["spec"]["replicas"] > 1
    budgets = [each["spec"] for each in of_kind("PodDisruptionBudget") if name_of(each) == name]
    spread = pod_of(process).get("topologySpreadConstraints", [])
    assert (len(budgets), len(spread)) == ((1, 1) if several else (0, 0))
    for each in [*budgets, *(constraint | {"selector": constraint["labelSelector"]} for constraint in spread)]:
        assert each["selector"]["matchLabels"] == {NAME: name}
    assert all(budget["minAvailable"] < process["spec"]["replicas"] for budget in budgets)


@pytest.mark.parametrize("process", PROCESSES, ids=name_of)
def test_service_monitor_scrapes_every_pod(process: Object) -> None:
    name = name_of(process)
    (service,) = [each for each in of_kind("Service") if name_of(each) == f"{name}-metrics"]
    (monitor,) = [each for each in of_kind("ServiceMonitor") if name_of(each) == name]
    assert service["spec"]["selector"] == {NAME: name}
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    assert service["spec"]["ports"][0]["targetPort"] in [
        each["name"] for each in pod_of(process)["containers"][0]["ports"]
    ]


def peers(policy: Object) -> Iterator[Object]:
    yield policy["spec"]["podSelector"]
    for rule in [*policy["spec"].get("ingress", []), *policy["spec"].get("egress", [])]:
        for peer in [*rule.get("from", []), *rule.get("to", [])]:
            yield peer.get("podSelector", {})


def test_network_policies_select_existing_processes() -> None:
    workloads = {name_of(each) for each in WORKLOADS}
    for selector in (selector for policy in of_kind("NetworkPolicy") for selector in peers(policy)):
        selected = {selector.get("matchLabels", {}).get(NAME)} - {None}
        selected |= {name for each in selector.get("matchExpressions", []) for name in each["values"]}
        assert selected <= workloads


def test_network_policies_open_only_listening_ports() -> None:
    listening = {port["containerPort"] for each in WORKLOADS for port in pod_of(each)["containers"][0]["ports"]}
    opened = {
        port["port"]
        for policy in of_kind("NetworkPolicy")
        for rule in policy["spec"].get("ingress", [])
        for port in rule["ports"]
    }
    assert opened == (listening | {SidecarContainerSettings().port}) - {
        8222
    }  # the NATS monitoring port, which only the kubelet uses


PRODUCTION_SETTINGS: dict[str, type[BaseSettings]] = {
    "activator": ActivatorSettings,
    "controller-manager": ControllerManagerSettings,
    "result-store": ResultStoreSettings,
    "runtime-api": RuntimeAPISettings,
}


def production_settings() -> dict[str, Any]:
    return {name: load_settings(PRODUCTION_DIR / f"{name}.yaml", model) for name, model in PRODUCTION_SETTINGS.items()}


def test_production_requires_authentication_and_uses_the_same_streams() -> None:
    settings = production_settings()
    assert settings["runtime-api"].authentication.mode == "required"
    nats = [getattr(each, "serverless", each).nats for each in settings.values()]
    assert {each.streams.replicas for each in nats} == {3}
    assert len(set(nats)) == 1
    assert nats[0].credentials_file.startswith("/etc/gpu-runtime-nats/")
    assert settings["controller-manager"].serverless.credentials_secret


def test_production_stock_and_sidecars_use_the_platform_image() -> None:
    (image,) = yaml.safe_load((PRODUCTION_DIR / "kustomization.yaml").read_text())["images"]
    images = production_settings()["controller-manager"].images
    assert images.stock == images.placeholder == f"{image['newName']}@{image['digest']}"
    assert images.sidecar == ""  # empty: the sidecar uses the stock image


def test_production_result_size_limit_fits_the_volume() -> None:
    patches = list(yaml.safe_load_all((PRODUCTION_DIR / "resources.yaml").read_text()))
    (pvc,) = [each["spec"] for each in patches if each["kind"] == "PersistentVolumeClaim"]
    size = int(pvc["resources"]["requests"]["storage"].removesuffix("Gi")) * 1024**3
    assert production_settings()["result-store"].retention.max_bytes + 512 * 1024**2 < size
