"""Fixtures: a control plane with the CRDs and RBAC manifests of the platform, and runtime API processes to kill.

The processes have the identity that the RBAC manifests give them. Every test therefore also tests these manifests.
"""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from signal import Signals
from typing import Any

import pytest
import yaml

from localcluster import control_plane as control_planes
from localcluster.control_plane import ControlPlane
from localcluster.free_ports import free_port
from localcluster.nats_server import NatsAccount
from localcluster.supervisor_client import tail_log, wait_until
from tests.conftest import enter_or_skip
from tests.integration.conftest import CONFIG_DIR
from tests.ticket_keys import TICKET_SECTION

RUNTIME_API_USER = "system:serviceaccount:runtime-system:runtime-api"
PROJECT_ROOT = CONFIG_DIR.parent


@dataclass
class HttpReply:
    status: int
    """0 if there was no response."""
    headers: Any
    json: Any


@dataclass
class ApiProcess:
    """A runtime API in a separate process."""

    folder: Path
    kubeconfig: Path
    settings: dict[str, Any] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    health_port: int = field(default_factory=free_port)
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> "ApiProcess":
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "settings.yaml"
        settings = {
            "api": {"bindAddress": f"127.0.0.1:{self.port}"},
            "health": {"bindAddress": f"127.0.0.1:{self.health_port}"},
            "kubernetes": {"kubeconfig": str(self.kubeconfig)},
            "authentication": {"mode": "off"},
            **TICKET_SECTION,
            "limits": {"shutdownDelaySeconds": 0.3, "requestsPerSecond": 0},
        }
        config.write_text(yaml.safe_dump(settings | self.settings))
        program = ["setpriv", "--pdeathsig", "KILL", "--", *self.command(config)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(program, stderr=log, cwd=PROJECT_ROOT)
        return self

    def command(self, config: Path) -> list[str]:
        return [sys.executable, "-m", "tests.integration.runtime_api.edge.api_with_extra_routes", str(config)]

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def log_lines(self) -> list[dict[str, Any]]:
        """All complete log lines. Only newlines separate them: requests may contain other line separators of
        Unicode."""
        return [json.loads(line) for line in self.log.read_text().split("\n")[:-1]]

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def request(
        self, path: str, method: str = "GET", body: Any = None, token: str = "", timeout: float = 60
    ) -> HttpReply:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.url(path), data, headers, method=method)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:  # noqa: S310
                return HttpReply(response.status, response.headers, _json(response.read()))
        except urllib.error.HTTPError as error:
            with error:
                return HttpReply(error.code, error.headers, _json(error.read()))
        except OSError:
            return HttpReply(0, {}, None)

    def wait_for(self, path: str, status: int, timeout: float = 60, **options: Any) -> HttpReply:
        last = HttpReply(0, {}, None)

        def has_status() -> bool:
            nonlocal last
            assert self.process
            assert self.process.poll() is None, f"{self.folder} has exited:\n{tail_log(self.log, 20)}"
            last = self.request(path, **options)
            return last.status == status

        wait_until(has_status, timeout, lambda: f"{path} answers {last} instead of {status}:\n{tail_log(self.log, 20)}")
        return last

    def wait_ready(self) -> "ApiProcess":
        self.wait_for("/readyz", 200, timeout=180)
        return self

    def signal(self, number: Signals) -> None:
        assert self.process
        self.process.send_signal(number)

    def wait_exit(self, timeout: float = 60) -> int:
        assert self.process
        return self.process.wait(timeout)


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode()


def nats_settings(account: NatsAccount) -> dict[str, Any]:
    """Settings with small streams: the NATS server reserves their maximum size, and many tests share the server."""
    max_bytes = 32 * 1024 * 1024
    return {"urls": [account.url], "streams": {"maxStreamBytes": max_bytes, "maxDeadLetterBytes": max_bytes}}


@dataclass
class ApiCluster:
    control_plane: ControlPlane
    folder: Path
    nats_account: NatsAccount
    replicas: list[ApiProcess] = field(default_factory=list)

    def start_replica(self, **settings: Any) -> ApiProcess:
        identity = self.control_plane.kubeconfig_for("runtime-api", RUNTIME_API_USER)
        merged = {"nats": nats_settings(self.nats_account), **settings}
        self.replicas.append(ApiProcess(self.folder / f"replica-{len(self.replicas)}", identity, merged))
        return self.replicas[-1].start()

    def kill_replicas(self) -> None:
        for replica in self.replicas:
            assert replica.process
            replica.process.kill()
            replica.process.wait(60)


@pytest.fixture(scope="package")
def api_control_plane() -> Iterator[ControlPlane]:
    with enter_or_skip(control_planes.temporary_control_plane(nodes=1, gpus_per_node=1)) as plane:
        for part in ("namespace", "crd", "rbac"):
            plane.kubectl("apply", "--server-side", "--validate=strict", "-k", str(CONFIG_DIR / part))
        plane.kubectl("wait", "--for=condition=Established", "--timeout=120s", "crd", "--all")
        yield plane


@pytest.fixture
def cluster(api_control_plane: ControlPlane, tmp_path: Path, nats_account: NatsAccount) -> Iterator[ApiCluster]:
    started = ApiCluster(api_control_plane, tmp_path, nats_account)
    yield started
    started.kill_replicas()
    if not api_control_plane.is_ready():
        api_control_plane.start_apiserver()
        api_control_plane.wait_ready()
