"""Starts the processes of the serverless plane for a platform: activator, result store, and one worker sidecar."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpu_runtime.contract.crd.well_known import SYSTEM_NAMESPACE, function_queue_name
from localcluster.free_ports import free_port
from localcluster.supervisor_client import wait_until
from tests.fuzz.seed_corpus import FUNCTION, POD_UID
from tests.integration.activator.activator_harness import ACTIVATOR_USER, ActivatorProcess
from tests.integration.controller_manager.conftest import GPU_RUNTIME_PROGRAM, QUEUE, UNIT, Object
from tests.integration.framework.framework_process import ECHO_SOURCE, running_framework, temporary_socket_dir
from tests.integration.runtime_api.edge.conftest import nats_settings
from tests.integration.runtime_api.live_platform import TOKEN, UNIT_NAMESPACE, LivePlatform
from tests.ticket_keys import TICKET_SECTION

TRACEBACK = re.compile(rb"Traceback[^\n]*")


@dataclass
class WatchedProcess:
    """A process and its log file."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path
    read_bytes: int = 0

    def new_failure(self) -> str:
        """A failure since the last call: the process has exited or has logged a traceback. Empty if there is none."""
        if self.process.poll() is not None:
            return f"{self.name} has ended with {self.process.returncode}: {self.log.read_bytes()[-4000:]!r}"
        with self.log.open("rb") as log:
            log.seek(self.read_bytes)
            new = log.read()
        self.read_bytes += len(new)
        match = TRACEBACK.search(new)
        return f"{self.name}: {new[max(0, match.start() - 1000) : match.end() + 4000]!r}" if match else ""


def new_failures(watched: list[WatchedProcess]) -> list[str]:
    return list(filter(None, (each.new_failure() for each in watched)))


def watch_platform(platform: LivePlatform) -> list[WatchedProcess]:
    assert platform.manager.process
    manager = WatchedProcess("controller-manager", platform.manager.process, platform.manager.log)
    replicas = [
        WatchedProcess("runtime-api", each.process, each.log) for each in platform.shared_replicas if each.process
    ]
    return [manager, *replicas]


@contextmanager
def running_activator(
    platform: LivePlatform, folder: Path, tickets: Object = TICKET_SECTION
) -> Iterator[WatchedProcess]:
    """An activator with short grace periods, so that messages of unknown functions are dead-lettered quickly."""
    token = folder / "token"
    token.write_text(TOKEN)
    settings: Object = {
        **tickets,
        "nats": nats_settings(platform.nats_account),
        "runtimeAPI": {"url": platform.shared_replicas[0].url(""), "tokenFile": str(token)},
        "dispatching": {"unknownFunctionGraceSeconds": 0.2},
        "reaping": {"pollIntervalSeconds": 0.2, "deadlineGraceSeconds": 0.6, "deletedFunctionGraceSeconds": 0.5},
    }
    running = ActivatorProcess(
        folder / "activator", platform.control_plane.kubeconfig_for("activator", ACTIVATOR_USER), settings
    ).start()
    try:
        running.wait_ready()
        assert running.process
        yield WatchedProcess("activator", running.process, running.log)
    finally:
        running.stop()


@contextmanager
def _running_process(name: str, folder: Path, settings: Object, **environment: str) -> Iterator[WatchedProcess]:
    config, log = folder / f"{name}.yaml", folder / f"{name}.log"
    config.write_text(yaml.safe_dump(settings))
    with log.open("ab") as log_file:
        command = ["setpriv", "--pdeathsig", "KILL", "--", str(GPU_RUNTIME_PROGRAM), name, "--config", str(config)]
        process = subprocess.Popen(command, stderr=log_file, env=environment or None)
    try:
        yield WatchedProcess(name, process, log)
    finally:
        process.kill()
        process.wait(20)


def wait_for_function_id(kube: Any, request_id: str) -> str:
    """Wait until the controller manager has created the FunctionQueue, and return its functionID."""
    name = function_queue_name(request_id)

    def exists() -> bool:
        return any(each.metadata.name == name for each in kube.list(QUEUE, namespace=SYSTEM_NAMESPACE))

    wait_until(exists, 60, lambda: f"the function {request_id} has no queue")
    return str(kube.get(QUEUE, name, namespace=SYSTEM_NAMESPACE)["spec"]["functionID"])


@contextmanager
def running_serverless(
    platform: LivePlatform, folder: Path, tickets: Object = TICKET_SECTION
) -> Iterator[tuple[list[WatchedProcess], str]]:
    """All processes, with one echo function and one worker that never stops. Yields the functionID, too."""
    nats = nats_settings(platform.nats_account)
    with platform.control_plane.client() as kube, ExitStack() as stack:
        serverless = {"enabled": True, "requestID": FUNCTION}
        spec = {"specName": FUNCTION, "image": "i", "running": False, "serverless": serverless}
        unit: Any = UNIT.from_dict({"metadata": {"name": FUNCTION, "namespace": UNIT_NAMESPACE}, "spec": spec})
        kube.create(unit)
        function_id = wait_for_function_id(kube, FUNCTION)
        store = {
            "health": {"bindAddress": f"127.0.0.1:{free_port()}"},
            "nats": nats,
            "database": {"path": str(folder / "results.db")},
            **tickets,
        }
        socket_dir = stack.enter_context(temporary_socket_dir())
        framework = stack.enter_context(running_framework(ECHO_SOURCE, socket_dir))
        sidecar = {
            "health": {"bindAddress": f"127.0.0.1:{free_port()}"},
            "nats": nats,
            "functionID": function_id,
            "requestID": FUNCTION,
            "worker": f"{FUNCTION}-w0",
            "namespace": UNIT_NAMESPACE,
            "concurrency": 4,
            "framework": {"socketPath": framework.socket},
            "retries": {"maxAttempts": 2, "initialBackoffSeconds": 0.05, "maxBackoffSeconds": 0.1},
        }
        watched = [
            *watch_platform(platform),
            stack.enter_context(running_activator(platform, folder, tickets)),
            stack.enter_context(_running_process("result-store", folder, store)),
            stack.enter_context(_running_process("worker-sidecar", folder, sidecar, POD_UID=POD_UID)),
        ]
        yield watched, function_id
        kube.delete(UNIT, FUNCTION, namespace=UNIT_NAMESPACE)
