"""Manifests of the Deployments and Services of units and pools."""

from typing import Any

import msgspec
import pytest

from gpu_runtime.contract.crd.well_known import Annotation, Label
from gpu_runtime.controller_manager.gpu_unit.children.deployment import deployment as unit_deployment
from gpu_runtime.controller_manager.gpu_unit.children.service import service as unit_service
from gpu_runtime.controller_manager.settings import PodSettings
from gpu_runtime.controller_manager.stock_pool.children.deployment import deployment as pool_deployment
from gpu_runtime.controller_manager.stock_pool.children.service import service as pool_service
from tests.unit.controller_manager.controller_objects import (
    NON_ROOT_SETTINGS,
    PORTS,
    SETTINGS,
    observed_pool,
    observed_unit,
    pool,
    unit,
)


def pod_of(manifest: dict[str, Any]) -> Any:
    return manifest["spec"]["template"]["spec"]


def unit_pod(*args: Any, **spec: Any) -> Any:
    return pod_of(unit_deployment(observed_unit(unit(*args, **spec))))


def test_active_unit_runs_its_own_image_and_command() -> None:
    pod = unit_pod(image="python:3", memory="1Gi", gpu=2)
    main = pod["containers"][0]
    assert (main["image"], main["command"], main["args"]) == ("python:3", [], [])
    assert main["terminationMessagePolicy"] == "FallbackToLogsOnError"
    assert main["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["NET_RAW"]}}
    assert pod["priorityClassName"] == "gpu-runtime-active"
    assert pod["automountServiceAccountToken"] is False
    assert "runAsNonRoot" not in pod["securityContext"]


ALL_RESOURCES = {"memory": "1Gi", "gpu": 2, "cpu": "4", "cpuLimit": "8", "ephemeralStorage": "20Gi"}
AMOUNTS = {"memory": "1Gi", "nvidia.com/gpu": "2", "ephemeral-storage": "20Gi"}
RESOURCES: dict[str, tuple[dict[str, Any], dict[str, str], dict[str, str]]] = {
    "nothing": ({}, {"ephemeral-storage": "100Gi"}, {"ephemeral-storage": "0"}),
    "all resources": (ALL_RESOURCES, AMOUNTS | {"cpu": "8"}, AMOUNTS | {"cpu": "4"}),
    "no CPU limit": (
        {"cpu": "500m", "ephemeralStorage": "1Gi"},
        {"ephemeral-storage": "1Gi"},
        {"cpu": "500m", "ephemeral-storage": "1Gi"},
    ),
}


@pytest.mark.parametrize(("spec", "limits", "requests"), RESOURCES.values(), ids=RESOURCES)
def test_pods_of_units_stock_and_pools_reserve_the_same(
    spec: dict[str, Any], limits: dict[str, str], requests: dict[str, str]
) -> None:
    pods = (unit_pod(**spec), unit_pod("runtime-stock", **spec), pod_of(pool_deployment(observed_pool(pool(**spec)))))
    for each in pods:
        assert each["containers"][0]["resources"] == {"limits": limits, "requests": requests}


def test_without_a_default_there_is_no_limit_of_ephemeral_storage() -> None:
    settings = msgspec.structs.replace(SETTINGS, pods=PodSettings(default_ephemeral_storage=""))
    pod = pod_of(unit_deployment(observed_unit(unit(), settings=settings)))
    assert pod["containers"][0]["resources"] == {"limits": {}, "requests": {}}


def test_template_decides_user_directory_shutdown_and_pull() -> None:
    template = {
        "workingDir": "/app",
        "runAsUser": 12345,
        "runAsGroup": 12346,
        "fsGroup": 12347,
        "terminationGracePeriodSeconds": 120,
        "imagePullSecrets": ["unit-registry"],
    }
    for pod in (unit_pod(template=template), pod_of(pool_deployment(observed_pool(pool(template=template))))):
        main = pod["containers"][0]
        assert (main["workingDir"], main["imagePullPolicy"]) == ("/app", "Always")
        assert pod["imagePullSecrets"] == [{"name": "unit-registry"}]
        assert pod["terminationGracePeriodSeconds"] == 120
        assert pod["securityContext"] == {
            "seccompProfile": {"type": "RuntimeDefault"},
            "runAsUser": 12345,
            "runAsGroup": 12346,
            "fsGroup": 12347,
            "fsGroupChangePolicy": "OnRootMismatch",
            "sysctls": [{"name": "net.ipv4.ping_group_range", "value": "0 2147483647"}],
        }


NO_GPUS = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}


def test_containers_without_gpus_hide_the_gpus_of_the_node() -> None:
    for gpu, env in ((0, [NO_GPUS]), (1, [])):
        for pod in (unit_pod(gpu=gpu), pod_of(pool_deployment(observed_pool(pool(gpu=gpu))))):
            assert pod["containers"][0]["env"] == env
    (init,) = unit_pod(template={"init": {"command": ["fetch"]}})["initContainers"]
    assert init["env"] == [NO_GPUS]


def test_secrets_and_shared_memory_are_volumes() -> None:
    variable = {"name": "TOKEN", "valueFrom": {"secret": {"name": "unit-hub", "key": "token"}}}
    template = {
        "envs": [{"name": "MODE", "value": "fast"}, variable],
        "sharedMemory": "8Gi",
        "secretMounts": [{"name": "unit-tls", "mountPath": "/etc/tls"}],
    }
    for pod in (unit_pod(template=template), pod_of(pool_deployment(observed_pool(pool(template=template))))):
        main = pod["containers"][0]
        secret = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "unit-hub", "key": "token"}}}
        assert main["env"] == [{"name": "MODE", "value": "fast"}, secret, NO_GPUS]
        assert pod["volumes"] == [
            {"name": "0-shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
            {"name": "0-secret-0", "secret": {"secretName": "unit-tls"}},
        ]
        assert main["volumeMounts"] == [
            {"name": "0-shared-memory", "mountPath": "/dev/shm", "readOnly": False},  # noqa: S108
            {"name": "0-secret-0", "mountPath": "/etc/tls", "readOnly": True},
        ]


def test_init_command_runs_like_the_container() -> None:
    pod = unit_pod(
        gpu=1,
        storageMounts=[{"name": "data", "mountPath": "/data"}],
        template={"command": ["serve"], "init": {"command": ["sh", "-c"], "args": ["fetch"]}, "ports": PORTS},
    )
    (init,), (main,) = pod["initContainers"], pod["containers"]
    assert init == main | {"name": "init", "command": ["sh", "-c"], "args": ["fetch"], "ports": []}
    assert init["volumeMounts"] == [{"name": "data", "mountPath": "/data", "readOnly": False}]


TWO_PORTS = {"ports": [{"name": "ssh", "port": 22}, {"name": "http", "port": 8080}]}
TIMES = {"initialDelaySeconds": None, "periodSeconds": 10, "timeoutSeconds": 1, "successThreshold": 1}
TIMES |= {"failureThreshold": 3}
PROBES: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "the first port": ({"tcpSocket": {}}, {"tcpSocket": {"port": 22}}),
    "a named port": ({"tcpSocket": {"port": "http"}}, {"tcpSocket": {"port": 8080}}),
    "HTTP": (
        {"httpGet": {"port": "http", "path": "/ready", "scheme": "HTTPS"}},
        {"httpGet": {"port": 8080, "path": "/ready", "scheme": "HTTPS"}},
    ),
    "a command": ({"exec": {"command": ["test", "-e", "/ready"]}}, {"exec": {"command": ["test", "-e", "/ready"]}}),
    "disabled": ({"disabled": True}, None),
}


@pytest.mark.parametrize(("probe", "rendered"), PROBES.values(), ids=PROBES)
def test_readiness_probe_of_the_container(probe: dict[str, Any], rendered: dict[str, Any] | None) -> None:
    (main,) = unit_pod(template=TWO_PORTS, probes={"readiness": probe})["containers"]
    assert main["readinessProbe"] == (rendered and rendered | TIMES)
    assert (main["startupProbe"], main["livenessProbe"]) == (None, None)


def test_probe_of_the_primary_port_follows_it() -> None:
    probes: dict[str, Any] = {"readiness": {"tcpSocket": {}}}
    (main,) = unit_pod(template=TWO_PORTS, access={"primaryPort": "http"}, probes=probes)["containers"]
    assert main["readinessProbe"]["tcpSocket"] == {"port": 8080}
    (without_ports,) = unit_pod(probes=probes)["containers"]
    assert without_ports["readinessProbe"] is None
    udp = {"ports": [{"name": "dns", "port": 53, "protocol": "UDP"}]}
    assert unit_pod(template=udp, probes=probes)["containers"][0]["readinessProbe"] is None


def test_other_ports_are_reachable_before_the_unit_is_ready() -> None:
    service = unit_service(observed_unit(unit(template=TWO_PORTS)))
    assert service
    assert service["spec"]["publishNotReadyAddresses"] is True


def test_stock_unit_runs_the_stock_image_and_ignores_its_spec() -> None:
    pod = unit_pod("runtime-stock", image="user:1", template={"command": ["user"]})
    main = pod["containers"][0]
    assert (main["image"], main["command"]) == ("stock:1", ["python3", "-m", "gpu_runtime.stock_process"])
    assert pod["priorityClassName"] == "gpu-runtime-stock"
    assert pod["terminationGracePeriodSeconds"] >= 1
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert main["securityContext"]["readOnlyRootFilesystem"] is True
    assert main["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_require_non_root_applies_to_units_and_pools() -> None:
    active = unit_deployment(observed_unit(unit(), settings=NON_ROOT_SETTINGS))
    warm = pool_deployment(observed_pool(pool(), settings=NON_ROOT_SETTINGS))
    assert [pod_of(each)["securityContext"]["runAsNonRoot"] for each in (active, warm)] == [True, True]


@pytest.mark.parametrize(("running", "replicas"), [(True, 1), (False, 0)])
def test_stopped_unit_has_no_replicas(running: bool, replicas: int) -> None:
    assert unit_deployment(observed_unit(unit(running=running)))["spec"]["replicas"] == replicas


def test_deployment_update_strategy_needs_no_extra_gpu() -> None:
    assert unit_deployment(observed_unit(unit()))["spec"]["strategy"] == {"type": "Recreate"}
    rolling = pool_deployment(observed_pool(pool()))["spec"]["strategy"]["rollingUpdate"]
    assert rolling == {"maxSurge": 0, "maxUnavailable": 1}


def test_pods_are_labeled_with_unit_name_and_uid() -> None:
    labels = unit_deployment(observed_unit(unit()))["spec"]["template"]["metadata"]["labels"]
    assert (labels[Label.UNIT], labels[Label.UNIT_UID]) == ("web", "uid-of-web")


def test_unit_prefers_the_node_of_its_source_stock() -> None:
    source_stock = {Annotation.SOURCE_STOCK_UID: "s", Annotation.SOURCE_STOCK_NODE: "node-1"}
    (preferred,) = unit_pod(annotations=source_stock)["affinity"]["nodeAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    assert preferred["preference"]["matchExpressions"][0]["values"] == ["node-1"]
    assert unit_pod(annotations={Annotation.SOURCE_STOCK_UID: "s"})["affinity"] == {}
    assert unit_pod()["affinity"] == {}


def test_storages_are_mounted_from_pvcs_of_the_same_name() -> None:
    mounts = [{"name": "data", "mountPath": "/data"}, {"name": "more", "mountPath": "/more", "readOnly": True}]
    pod = unit_pod(storageMounts=mounts)
    assert [each["persistentVolumeClaim"]["claimName"] for each in pod["volumes"]] == ["data", "more"]
    assert [(each["mountPath"], each["readOnly"]) for each in pod["containers"][0]["volumeMounts"]] == [
        ("/data", False),
        ("/more", True),
    ]


def test_service_exposes_every_declared_port() -> None:
    for manifest in (
        unit_service(observed_unit(unit(template={"ports": PORTS}))),
        pool_service(observed_pool(pool(template={"ports": PORTS}))),
    ):
        assert manifest
        assert manifest["spec"]["ports"] == [
            {"name": "http", "port": 80, "protocol": "TCP", "targetPort": 80},
            {"name": "voice", "port": 80, "protocol": "UDP", "targetPort": 80},
        ]


def test_no_service_for_stock_or_for_units_without_ports() -> None:
    assert unit_service(observed_unit(unit())) is None
    assert unit_service(observed_unit(unit("runtime-stock", template={"ports": PORTS}))) is None
    assert pool_service(observed_pool(pool())) is None


@pytest.mark.parametrize(
    ("spec", "image", "command", "args"),
    [
        ({}, "placeholder:1", "sh", []),
        ({"image": "own:1"}, "own:1", "sh", []),
        ({"image": "own:1", "template": {"command": ["run"]}}, "own:1", "run", []),
        ({"image": "own:1", "template": {"args": ["-v"]}}, "own:1", None, ["-v"]),
    ],
)
def test_pool_without_command_runs_the_placeholder(spec: Any, image: str, command: str | None, args: list[str]) -> None:
    main = pod_of(pool_deployment(observed_pool(pool(**spec))))["containers"][0]
    assert (main["image"], next(iter(main["command"]), None), main["args"]) == (image, command, args)


def test_children_of_a_pool_have_a_name_prefix() -> None:
    manifest = pool_deployment(observed_pool(pool()))
    assert manifest["metadata"]["name"] == "pool-warm"
    assert manifest["metadata"]["ownerReferences"][0]["kind"] == "StockPool"
