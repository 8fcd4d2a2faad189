"""Runs the platform with its installed manifests and settings on an API server whose authorization is recorded.

Every process uses the token of its own service account.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace

from localcluster import control_plane as control_planes
from localcluster.control_plane import ControlPlane
from localcluster.nats_server import NatsAccount
from tests.conftest import enter_or_skip
from tests.integration.activator.activator_harness import ActivatorProcess
from tests.integration.conftest import CONFIG_DIR
from tests.integration.controller_manager.conftest import ControllerCluster, ControllerManagerProcess, Object
from tests.integration.kube.test_live_kube_credentials import write_kubeconfig
from tests.integration.privilege.authorization_recorder import AuthorizationRecorder, authorization_recorder
from tests.integration.runtime_api.edge.conftest import HttpReply
from tests.integration.runtime_api.live_platform import LiveApiProcess

SYSTEM_NAMESPACE = "runtime-system"
OTHER_NAMESPACE = "elsewhere"
"""A namespace of units and pools that the manifests of the platform do not contain."""
ADMISSION_PLUGINS = "NodeRestriction,PodSecurity,OwnerReferencesPermissionEnforcement"
"""With OwnerReferencesPermissionEnforcement, as in some clusters. The plugin checks whether a caller that sets an owner
reference may update the finalizers of the owner."""
TOKEN = "one-token-with-both-scopes"  # noqa: S105 - only used in these tests


class FastRetentionApiProcess(LiveApiProcess):
    def command(self, config: Path) -> list[str]:
        program, *_ = super().command(config)
        return [
            str(Path(program).with_name("python")),
            "-m",
            "tests.integration.privilege.fast_retention_api",
            str(config),
        ]


@dataclass
class AuditedPlatform:
    cluster: ControllerCluster
    authorization: AuthorizationRecorder
    nats_account: NatsAccount
    api: FastRetentionApiProcess
    manager: ControllerManagerProcess
    activator: ActivatorProcess

    @property
    def control_plane(self) -> ControlPlane:
        return self.cluster.control_plane

    def request(self, method: str, path: str, body: Any = None) -> HttpReply:
        return self.api.request(f"/api/v1/{path}", method, body, TOKEN)

    def list_objects(self, kinds: str) -> list[Object]:
        """Return all objects of these kinds, read from the API server."""
        items: list[Object] = json.loads(self.control_plane.kubectl("get", kinds, "-A", "-o", "json"))["items"]
        return items


@contextmanager
def running_audited_platform(folder: Path, nats: NatsAccount) -> Iterator[AuditedPlatform]:
    with authorization_recorder(folder) as recorder:
        flags = recorder.apiserver_flags() | {"enable-admission-plugins": ADMISSION_PLUGINS}
        with (
            enter_or_skip(
                control_planes.temporary_control_plane(nodes=2, gpus_per_node=8, apiserver_flags=flags)
            ) as plane,
            plane.client() as kube,
        ):
            _install(plane)
            kube.create(Namespace(metadata=ObjectMeta(name=OTHER_NAMESPACE)))
            _copy_roles(plane, folder)
            platform = _create_processes(ControllerCluster(plane, kube, folder), recorder, nats)
            processes = (platform.api, platform.manager, platform.activator)
            try:
                for process in processes:
                    process.start()
                platform.api.wait_ready()
                for leader in (platform.manager, platform.activator):
                    leader.wait_ready().wait_leading()
                yield platform
            finally:
                for process in processes:
                    process.stop()


def _install(plane: ControlPlane) -> None:
    """Install all manifests. The pods run on simulated nodes, without containers."""
    apply = ("apply", "--server-side", "--validate=strict")
    plane.kubectl(*apply, "-k", str(CONFIG_DIR / "crd"))
    plane.kubectl("wait", "--for=condition=Established", "--timeout=120s", "crd", "--all")
    plane.kubectl(*apply, "-k", str(CONFIG_DIR / "default"))


def _copy_roles(plane: ControlPlane, folder: Path) -> None:
    """Copy the roles of the namespace of units, as the documentation says for a further namespace of units."""
    copied = json.loads(plane.kubectl("get", "roles,rolebindings", "-n", "runtime-instance", "-o", "json"))
    for item in copied["items"]:
        item["metadata"] = {"name": item["metadata"]["name"], "namespace": OTHER_NAMESPACE}
    manifest = folder / "copied-roles.json"
    manifest.write_text(json.dumps(copied))
    plane.kubectl("apply", f"--filename={manifest}")


def _create_processes(
    cluster: ControllerCluster, recorder: AuthorizationRecorder, nats: NatsAccount
) -> AuditedPlatform:
    folder, plane = cluster.folder, cluster.control_plane
    nats_settings: Object = {
        "urls": [nats.url],
        "streams": {"maxStreamBytes": 8 * 1024**2, "maxDeadLetterBytes": 1024**2},
    }
    token_list_file, activator_token_file = folder / "tokens.yaml", folder / "activator.token"
    token_list_file.write_text(
        yaml.safe_dump({"tokens": [{"name": "tests", "token": TOKEN, "scopes": ["operator", "runtime"]}]})
    )
    activator_token_file.write_text(_service_account_token(plane, "activator", "--audience=gpu-runtime"))
    api_settings = _installed_settings("runtime-api")
    api = FastRetentionApiProcess(
        folder / "api",
        _token_kubeconfig(plane, folder, "runtime-api"),
        api_settings
        | {
            "nats": nats_settings,
            "authentication": api_settings["authentication"] | {"tokenFile": str(token_list_file)},
            "namespaces": {"units": ["runtime-instance", OTHER_NAMESPACE], "pools": ["default", OTHER_NAMESPACE]},
        },
    )
    manager = ControllerManagerProcess(
        folder / "manager", _token_kubeconfig(plane, folder, "controller-manager"), _installed_settings("manager")
    )
    fast_scaling = {
        "pollIntervalSeconds": 0.2,
        "drainRequestTimeoutSeconds": 1,
        "failedWorkerGraceSeconds": 0.1,
        "initialBackoffSeconds": 0.1,
    }
    api_access = {"url": api.url(""), "tokenFile": str(activator_token_file)}
    activator = ActivatorProcess(
        folder / "activator",
        _token_kubeconfig(plane, folder, "activator"),
        _installed_settings("activator")
        | {
            "nats": nats_settings | {"streams": nats_settings["streams"] | {"dispatchAckWaitSeconds": 0.1}},
            "runtimeAPI": api_access,
            "scaling": fast_scaling,
        },
    )
    return AuditedPlatform(cluster, recorder, nats, api, manager, activator)


def _installed_settings(folder: str) -> Object:
    """Return the settings of a process in the cluster, without the sections of its listen addresses."""
    settings: Object = yaml.safe_load((CONFIG_DIR / folder / "settings.yaml").read_text())
    return {name: value for name, value in settings.items() if name not in ("health", "api")}


def _token_kubeconfig(plane: ControlPlane, folder: Path, account: str) -> Path:
    return write_kubeconfig(folder / f"{account}.kubeconfig", plane, {"token": _service_account_token(plane, account)})


def _service_account_token(plane: ControlPlane, account: str, *flags: str) -> str:
    return plane.kubectl("create", "token", account, f"--namespace={SYSTEM_NAMESPACE}", "--duration=1h", *flags).strip()
