"""The processes of the serverless plane around a platform: activator, result store, one worker with its sidecar."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from localcluster.control_plane import free_port
from tests.fuzz.samples import FUNCTION, INSTANCE
from tests.integration.activator.plane import IDENTITY, ActivatorProcess
from tests.integration.controller_manager.conftest import PROGRAM, UNIT, Object
from tests.integration.framework.worker import ECHO, socket_place, worker
from tests.integration.runtime_api.edge.conftest import nats_settings
from tests.integration.runtime_api.live import TOKEN, UNITS, Platform

TRACEBACK = re.compile(rb"Traceback[^\n]*")


@dataclass
class Watched:
    """A process with its log."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path
    read: int = 0

    def complaint(self) -> str:
        """What is wrong with it since it was last asked: that it has ended, or that it met what it did not expect."""
        if self.process.poll() is not None:
            return f"{self.name} has ended with {self.process.returncode}: {self.log.read_bytes()[-4000:]!r}"
        with self.log.open("rb") as log:
            log.seek(self.read)
            new = log.read()
        self.read += len(new)
        found = TRACEBACK.search(new)
        return f"{self.name}: {new[max(0, found.start() - 1000) : found.end() + 4000]!r}" if found else ""


def complaints(watched: list[Watched]) -> list[str]:
    return list(filter(None, (each.complaint() for each in watched)))


def of_platform(platform: Platform) -> list[Watched]:
    assert platform.manager.process
    manager = Watched("controller-manager", platform.manager.process, platform.manager.log)
    replicas = [Watched("runtime-api", each.process, each.log) for each in platform.standing if each.process]
    return [manager, *replicas]


@contextmanager
def activator(platform: Platform, folder: Path) -> Iterator[Watched]:
    """Impatient with what waits for nobody."""
    token = folder / "token"
    token.write_text(TOKEN)
    settings: Object = {
        "nats": nats_settings(platform.nats),
        "api": {"url": platform.standing[0].url(""), "tokenFile": str(token)},
        "dispatching": {"unknownSeconds": 0.2},
        "reaping": {"passSeconds": 0.2, "graceSeconds": 0.2, "goneSeconds": 0.5},
    }
    running = ActivatorProcess(
        folder / "activator", platform.plane.kubeconfig_for("activator", IDENTITY), settings
    ).start()
    try:
        running.wait_ready()
        assert running.process
        yield Watched("activator", running.process, running.log)
    finally:
        running.end()


@contextmanager
def _started(name: str, folder: Path, settings: Object, **environment: str) -> Iterator[Watched]:
    config, log = folder / f"{name}.yaml", folder / f"{name}.log"
    config.write_text(yaml.safe_dump(settings))
    with log.open("ab") as to:
        command = ["setpriv", "--pdeathsig", "KILL", "--", str(PROGRAM), name, "--config", str(config)]
        process = subprocess.Popen(command, stderr=to, env=environment or None)
    try:
        yield Watched(name, process, log)
    finally:
        process.kill()
        process.wait(20)


@contextmanager
def serverless_plane(platform: Platform, folder: Path) -> Iterator[list[Watched]]:
    """All of it, with one function that echoes and one worker of it that is always there."""
    nats = nats_settings(platform.nats)
    with platform.plane.client() as kube, ExitStack() as stack:
        serverless = {"enabled": True, "requestID": FUNCTION}
        spec = {"specName": FUNCTION, "image": "i", "running": False, "serverless": serverless}
        unit: Any = UNIT.from_dict({"metadata": {"name": FUNCTION, "namespace": UNITS}, "spec": spec})
        kube.create(unit)
        store = {
            "endpoints": {"bind": f"127.0.0.1:{free_port()}"},
            "nats": nats,
            "database": {"path": str(folder / "results.db")},
        }
        place = stack.enter_context(socket_place())
        framework = stack.enter_context(worker(ECHO, place))
        sidecar = {
            "endpoints": {"bind": f"127.0.0.1:{free_port()}"},
            "nats": nats,
            "requestID": FUNCTION,
            "worker": f"{FUNCTION}-w0",
            "namespace": UNITS,
            "concurrency": 4,
            "framework": {"socketPath": framework.socket},
            "retries": {"attempts": 2, "firstSeconds": 0.05, "longestSeconds": 0.1},
        }
        yield [
            *of_platform(platform),
            stack.enter_context(activator(platform, folder)),
            stack.enter_context(_started("result-store", folder, store)),
            stack.enter_context(_started("worker-sidecar", folder, sidecar, POD_UID=INSTANCE)),
        ]
        kube.delete(UNIT, FUNCTION, namespace=UNITS)
