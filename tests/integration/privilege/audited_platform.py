"""The platform as it is shipped, every process under its own account's token, on an API server that is overheard."""

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
"""A namespace of units and pools whose name nobody knew when the platform was installed."""
ADMISSION_PLUGINS = "NodeRestriction,PodSecurity,OwnerReferencesPermissionEnforcement"
"""As in clusters that ask whether whoever makes somebody the owner of an object could finalize the owner."""
TOKEN = "one-token-with-both-scopes"  # noqa: S105 - of these tests only


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
        """Every object of these kinds in the cluster, as the API server has them."""
        found: list[Object] = json.loads(self.control_plane.kubectl("get", kinds, "-A", "-o", "json"))["items"]
        return found


@contextmanager
def running_audited_platform(folder: Path, nats: NatsAccount) -> Iterator[AuditedPlatform]:
    with authorization_recorder(folder) as heard:
        flags = heard.apiserver_flags() | {"enable-admission-plugins": ADMISSION_PLUGINS}
        with (
            enter_or_skip(
                control_planes.temporary_control_plane(nodes=2, gpus_per_node=8, apiserver_flags=flags)
            ) as plane,
            plane.client() as kube,
        ):
            _install(plane)
            kube.create(Namespace(metadata=ObjectMeta(name=OTHER_NAMESPACE)))
            made = _create_processes(ControllerCluster(plane, kube, folder), heard, nats)
            processes = (made.api, made.manager, made.activator)
            try:
                for process in processes:
                    process.start()
                made.api.wait_ready()
                for leader in (made.manager, made.activator):
                    leader.wait_ready().wait_leading()
                yield made
            finally:
                for process in processes:
                    process.stop()


def _install(plane: ControlPlane) -> None:
    """All of it: its pods run on simulated nodes, where they do nothing."""
    apply = ("apply", "--server-side", "--validate=strict")
    plane.kubectl(*apply, "-k", str(CONFIG_DIR / "crd"))
    plane.kubectl("wait", "--for=condition=Established", "--timeout=120s", "crd", "--all")
    plane.kubectl(*apply, "-k", str(CONFIG_DIR / "default"))


def _create_processes(cluster: ControllerCluster, heard: AuthorizationRecorder, nats: NatsAccount) -> AuditedPlatform:
    folder, plane = cluster.folder, cluster.control_plane
    queue = {"urls": [nats.url], "streams": {"maxStreamBytes": 8 * 1024**2, "maxDeadLetterBytes": 1024**2}}
    tokens, own_token = folder / "tokens.yaml", folder / "activator.token"
    tokens.write_text(
        yaml.safe_dump({"tokens": [{"name": "tests", "token": TOKEN, "scopes": ["operator", "runtime"]}]})
    )
    own_token.write_text(_service_account_token(plane, "activator", "--audience=gpu-runtime"))
    shipped = _installed_settings("api")
    api = FastRetentionApiProcess(
        folder / "api",
        _token_kubeconfig(plane, folder, "runtime-api"),
        shipped
        | {
            "nats": queue,
            "authentication": shipped["authentication"] | {"tokenFile": str(tokens)},
            "namespaces": {"units": ["runtime-instance", OTHER_NAMESPACE], "pools": ["default", OTHER_NAMESPACE]},
        },
    )
    manager = ControllerManagerProcess(
        folder / "manager", _token_kubeconfig(plane, folder, "controller-manager"), _installed_settings("manager")
    )
    impatient = {"pollIntervalSeconds": 0.2, "drainRequestTimeoutSeconds": 1, "failedWorkerGraceSeconds": 0.1, "initialBackoffSeconds": 0.1}
    calling = {"url": api.url(""), "tokenFile": str(own_token)}
    activator = ActivatorProcess(
        folder / "activator",
        _token_kubeconfig(plane, folder, "activator"),
        _installed_settings("activator") | {"nats": queue, "runtimeAPI": calling, "scaling": impatient},
    )
    return AuditedPlatform(cluster, heard, nats, api, manager, activator)


def _installed_settings(folder: str) -> Object:
    """The settings of a process in the cluster, except where it listens."""
    settings: Object = yaml.safe_load((CONFIG_DIR / folder / "settings.yaml").read_text())
    return {name: value for name, value in settings.items() if name not in ("endpoints", "api")}


def _token_kubeconfig(plane: ControlPlane, folder: Path, account: str) -> Path:
    return write_kubeconfig(folder / f"{account}.kubeconfig", plane, {"token": _service_account_token(plane, account)})


def _service_account_token(plane: ControlPlane, account: str, *more: str) -> str:
    return plane.kubectl("create", "token", account, f"--namespace={SYSTEM_NAMESPACE}", "--duration=1h", *more).strip()
