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
from localcluster.nats_server import Account
from tests.conftest import available
from tests.integration.activator.plane import ActivatorProcess
from tests.integration.conftest import CONFIG
from tests.integration.controller_manager.conftest import Cluster, Manager, Object
from tests.integration.kube.test_live_identity import kubeconfig
from tests.integration.privilege.overhearing import Overheard, overhearing
from tests.integration.runtime_api.edge.conftest import Reply
from tests.integration.runtime_api.live import LiveReplica

SYSTEM = "runtime-system"
ELSEWHERE = "elsewhere"
"""A namespace of units and pools whose name nobody knew when the platform was installed."""
ADMISSION = "NodeRestriction,PodSecurity,OwnerReferencesPermissionEnforcement"
"""As in clusters that ask whether whoever makes somebody the owner of an object could finalize the owner."""
TOKEN = "one-token-with-both-scopes"  # noqa: S105 - of these tests only


class HastyReplica(LiveReplica):
    def command(self, config: Path) -> list[str]:
        program, *_ = super().command(config)
        return [str(Path(program).with_name("python")), "-m", "tests.integration.privilege.hasty_api", str(config)]


@dataclass
class Platform:
    cluster: Cluster
    heard: Overheard
    nats: Account
    api: HastyReplica
    manager: Manager
    activator: ActivatorProcess

    @property
    def plane(self) -> ControlPlane:
        return self.cluster.plane

    def ask(self, method: str, path: str, body: Any = None) -> Reply:
        return self.api.ask(f"/api/v1/{path}", method, body, TOKEN)

    def all(self, kinds: str) -> list[Object]:
        """Every object of these kinds in the cluster, as the API server has them."""
        found: list[Object] = json.loads(self.plane.kubectl("get", kinds, "-A", "-o", "json"))["items"]
        return found


@contextmanager
def running_platform(folder: Path, nats: Account) -> Iterator[Platform]:
    with overhearing(folder) as heard:
        flags = heard.flags() | {"enable-admission-plugins": ADMISSION}
        with (
            available(control_planes.control_plane(nodes=2, gpus_per_node=8, apiserver_flags=flags)) as plane,
            plane.client() as kube,
        ):
            _install(plane)
            kube.create(Namespace(metadata=ObjectMeta(name=ELSEWHERE)))
            made = _processes(Cluster(plane, kube, folder), heard, nats)
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
                    process.end()


def _install(plane: ControlPlane) -> None:
    """All of it: its pods run on simulated nodes, where they do nothing."""
    apply = ("apply", "--server-side", "--validate=strict")
    plane.kubectl(*apply, "-k", str(CONFIG / "crd"))
    plane.kubectl("wait", "--for=condition=Established", "--timeout=120s", "crd", "--all")
    plane.kubectl(*apply, "-k", str(CONFIG / "default"))


def _processes(cluster: Cluster, heard: Overheard, nats: Account) -> Platform:
    folder, plane = cluster.folder, cluster.plane
    queue = {"urls": [nats.url], "streams": {"queueBytes": 8 * 1024**2, "deadLetterBytes": 1024**2}}
    tokens, own_token = folder / "tokens.yaml", folder / "activator.token"
    tokens.write_text(
        yaml.safe_dump({"tokens": [{"name": "tests", "token": TOKEN, "scopes": ["operator", "runtime"]}]})
    )
    own_token.write_text(_token(plane, "activator", "--audience=gpu-runtime"))
    shipped = _shipped("api")
    api = HastyReplica(
        folder / "api",
        _identity(plane, folder, "runtime-api"),
        shipped
        | {
            "nats": queue,
            "authentication": shipped["authentication"] | {"tokenFile": str(tokens)},
            "namespaces": {"units": ["runtime-instance", ELSEWHERE], "pools": ["default", ELSEWHERE]},
        },
    )
    manager = Manager(folder / "manager", _identity(plane, folder, "controller-manager"), _shipped("manager"))
    impatient = {"passSeconds": 0.2, "drainSeconds": 1, "failedSeconds": 0.1, "retryFirstSeconds": 0.1}
    calling = {"url": api.url(""), "tokenFile": str(own_token)}
    activator = ActivatorProcess(
        folder / "activator",
        _identity(plane, folder, "activator"),
        _shipped("activator") | {"nats": queue, "api": calling, "scaling": impatient},
    )
    return Platform(cluster, heard, nats, api, manager, activator)


def _shipped(folder: str) -> Object:
    """The settings of a process in the cluster, except where it listens."""
    settings: Object = yaml.safe_load((CONFIG / folder / "settings.yaml").read_text())
    return {name: value for name, value in settings.items() if name not in ("endpoints", "api")}


def _identity(plane: ControlPlane, folder: Path, account: str) -> Path:
    return kubeconfig(folder / f"{account}.kubeconfig", plane, {"token": _token(plane, account)})


def _token(plane: ControlPlane, account: str, *more: str) -> str:
    return plane.kubectl("create", "token", account, f"--namespace={SYSTEM}", "--duration=1h", *more).strip()
