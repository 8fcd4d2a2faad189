"""The development platform: `up` is idempotent, data survives power loss and `down`, and `down` stops all processes."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client as Nats

from localcluster import node
from localcluster.free_ports import free_port
from localcluster.linux_namespaces import NodeNamespaces, NodeNetwork
from localcluster.supervisor_client import SupervisorClient, process_exists, wait_until
from tests.conftest import enter_or_skip
from tests.e2e.node_api_requests import send_request

EXAMPLES = Path(__file__).parents[3] / "examples"


@dataclass(frozen=True)
class DevPlatform:
    """A development platform for one test, controlled by its command line."""

    state_dir: Path
    api_port: int
    nats_port: int

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "localcluster", *arguments],
            env=os.environ | {"GPU_RUNTIME_LOCAL_STATE_DIR": str(self.state_dir)},
            capture_output=True,
            text=True,
            timeout=480,
            check=False,
        )

    def up(self) -> subprocess.CompletedProcess[str]:
        return self.run("up", f"--api-port={self.api_port}", f"--nats-port={self.nats_port}")

    def request(self, method: str, path: str, example: str = "") -> tuple[int, dict[str, Any]]:
        """Send a request and return status and body. An example can be the body. Without response the status is 0."""
        body = json.loads((EXAMPLES / example).read_text()) if example else None
        try:
            return send_request(f"http://127.0.0.1:{self.api_port}/api/v1", method, path, body)
        except OSError:
            return 0, {}

    def kubectl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.state_dir / "bin" / "kubectl"), f"--kubeconfig={self.state_dir / 'kubeconfig'}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    def persisted_files(self) -> set[str]:
        """Return the names of the files with user data that exist on this machine's disk."""
        return {
            name for name in ("started", "results.db") if list((self.state_dir / "platform" / "volumes").rglob(name))
        }

    @property
    def processes(self) -> SupervisorClient:
        return SupervisorClient(self.state_dir / "platform")

    @property
    def interface(self) -> str:
        return f"lc-{(self.state_dir / 'platform' / 'network').read_text()}"

    def leftovers(self) -> list[str]:
        """Return the processes, mounts, interfaces and cgroups of the platform that still exist."""
        state_dir = str(self.state_dir).encode()
        commands = {path: _read(path) for path in Path("/proc").glob("[0-9]*/cmdline")}
        remaining = [
            f"process {path}"
            for path, command in commands.items()
            if state_dir in command and process_exists(int(path.parts[2]))
        ]
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        remaining += [line for line in mounts if str(self.state_dir) in line]
        remaining += [link for link in os.listdir("/sys/class/net") if link == self.interface]  # noqa: PTH208
        cgroup = NodeNamespaces(self.state_dir / "platform", NodeNetwork(0), 0).cgroup
        return remaining + [str(path) for path in Path("/sys/fs/cgroup").glob(f"**/{cgroup}")]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@contextmanager
def prepared() -> Iterator[None]:
    node.prepare()
    yield


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[DevPlatform]:
    with enter_or_skip(prepared()):
        dev_platform = DevPlatform(tmp_path / "local", free_port(), free_port())
        yield dev_platform
        dev_platform.run("wipe")


def publish(port: int) -> None:
    async def scenario() -> None:
        client = Nats()
        await client.connect(f"nats://127.0.0.1:{port}")
        jetstream = client.jetstream()
        await jetstream.add_stream(name="durable", subjects=["durable"])
        await jetstream.publish("durable", b"once")
        await client.close()

    asyncio.run(scenario())


def published(port: int) -> int:
    async def scenario() -> int:
        client = Nats()
        await client.connect(f"nats://127.0.0.1:{port}")
        info = await client.jetstream().stream_info("durable")
        await client.close()
        return info.state.messages

    return asyncio.run(scenario())


def use_platform(platform: DevPlatform) -> None:
    """Follow the README: create a storage to which a unit writes a file, and a function that is invoked."""
    assert platform.request("POST", "/operator/stock-units", "stock.json")[0] == 202
    assert platform.request("POST", "/gpu-storages", "storage.json")[0] == 201
    created = (200, 201)
    wait_until(
        lambda: platform.request("POST", "/gpu-units", "web.json")[0] in created, 120, lambda: "no stock is Ready", 0.2
    )
    function = platform.kubectl("apply", "-f", str(EXAMPLES / "functions" / "doubling.yaml"))
    assert function.returncode == 0, function.stderr
    wait_until(lambda: has_response(platform), 120, lambda: "the function sends no response")


def has_response(platform: DevPlatform) -> bool:
    """Whether the invocation has its result. The cold start may take longer than the sync timeout of the API; the next
    request has the same invocationID."""
    response = platform.request("POST", "/serverless/invocations", "invoke-sync.json")[1]
    return bool(response.get("data", {}).get("payload") == {"n": 42})


def recorded_starts(platform: DevPlatform) -> list[str]:
    """Return the file in the unit's storage. The unit appends a line at each start. Empty if the unit does not run."""
    completed = platform.kubectl("exec", "deployment/web", "--namespace=runtime-instance", "--", "cat", "/site/started")
    return completed.stdout.splitlines()


def wait_next_start(platform: DevPlatform, before: list[str]) -> list[str]:
    """Wait until the file has a line for another start."""
    lines: list[str] = []

    def has_another_start() -> bool:
        lines[:] = recorded_starts(platform)
        return len(lines) > len(before)

    wait_until(has_another_start, 120, lambda: f"{lines} after {before}", 0.2)
    assert lines[: len(before)] == before, "the storage has lost data"
    return lines


def wait_result(platform: DevPlatform) -> None:
    """Wait until the API returns the stored result of the invocation."""
    last_response: tuple[int, dict[str, Any]] = (0, {})

    def has_stored_result() -> bool:
        nonlocal last_response
        last_response = platform.request("GET", "/serverless/invocations/call-1")
        return last_response[0] == 200 and last_response[1]["data"].get("payload") == {"n": 42}

    wait_until(has_stored_result, 120, lambda: f"the result is lost: {last_response}", 0.2)


def health(port: int) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/health", timeout=60) as response:
        return dict(json.loads(response.read())["data"])


def test_up_is_idempotent_and_survives_down_and_power_loss(platform: DevPlatform) -> None:
    first = platform.up()
    assert first.returncode == 0, first.stderr
    assert health(platform.api_port)["kubernetesConnected"]
    assert f"nats://127.0.0.1:{platform.nats_port}" in first.stdout
    publish(platform.nats_port)
    use_platform(platform)
    starts = wait_next_start(platform, [])
    wait_result(platform)
    second = platform.up()
    assert second.returncode == 0, second.stderr

    supervisor = platform.processes.supervisor_pid()
    platform.processes.signal_supervisor(signal.SIGKILL)
    wait_until(lambda: not process_exists(supervisor), 60, lambda: "the supervisor still runs")
    assert platform.run("status").returncode == 1
    after_power_loss = platform.up()
    assert after_power_loss.returncode == 0, after_power_loss.stderr
    assert published(platform.nats_port) == 1, "the power loss has lost a message"
    assert health(platform.api_port)["kubernetesConnected"]
    starts = wait_next_start(platform, starts)

    pid = platform.processes.get("kube-apiserver").pid
    platform.processes.signal("kube-apiserver", signal.SIGKILL)
    wait_until(lambda: platform.processes.get("kube-apiserver").pid not in (None, pid), 60, lambda: "no new API server")

    assert platform.run("down").returncode == 0
    assert platform.leftovers() == []
    assert (platform.state_dir / "platform" / "etcd").exists()
    assert platform.run("down").returncode == 0, "a second down must succeed"
    assert platform.persisted_files() == {"started", "results.db"}

    after_down = platform.up()
    assert after_down.returncode == 0, after_down.stderr
    wait_next_start(platform, starts)
    wait_result(platform)
    assert platform.run("wipe").returncode == 0
    assert platform.persisted_files() == set()
    assert not (platform.state_dir / "platform").exists()


def test_port_in_use_is_reported_and_nothing_is_started(platform: DevPlatform) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", platform.api_port))
        other.listen()
        completed = platform.up()
    assert completed.returncode == 2
    message = completed.stderr.strip().splitlines()[-1]
    assert f"port {platform.api_port} of 127.0.0.1" in message
    assert "API_PORT=" in message
    assert not platform.processes.is_alive()


def test_interrupted_up_leaves_no_process(platform: DevPlatform) -> None:
    arguments = ["up", f"--api-port={platform.api_port}", f"--nats-port={platform.nats_port}"]
    with subprocess.Popen(
        [sys.executable, "-m", "localcluster", *arguments],
        env=os.environ | {"GPU_RUNTIME_LOCAL_STATE_DIR": str(platform.state_dir)},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            wait_until(platform.processes.is_alive, 240, lambda: "the supervisor was not started")
        finally:
            process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130, stderr
    assert platform.leftovers() == []


def test_a_killed_owner_of_a_node_leaves_no_process_and_no_interface(tmp_path: Path) -> None:
    local = tmp_path / "local"
    with (
        enter_or_skip(prepared()),
        subprocess.Popen(
            [sys.executable, "-m", "localcluster", "node"],
            env=os.environ | {"GPU_RUNTIME_LOCAL_STATE_DIR": str(local)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as owner,
    ):
        state_dir = _state_dir(local)
        processes = SupervisorClient(state_dir)
        wait_until(processes.is_alive, 60, lambda: "the node was not started")
        supervisor = processes.supervisor_pid()
        owner.send_signal(signal.SIGKILL)
    wait_until(lambda: not process_exists(supervisor), 60, lambda: "the node still runs after its owner was killed")
    wait_until(
        lambda: not any(str(state_dir).encode() in _read(path) for path in Path("/proc").glob("[0-9]*/cmdline")),
        60,
        lambda: "processes of the node still run",
    )
    node.remove_node_state(state_dir)


def _state_dir(local: Path) -> Path:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        nodes = [path for path in (local / "nodes").glob("*") if (path / "supervisor.sock").exists()]
        if nodes:
            return nodes[0]
        time.sleep(0.05)
    raise AssertionError("no node was started")
