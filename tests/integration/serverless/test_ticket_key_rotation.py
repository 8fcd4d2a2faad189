"""The rotation of the ticket keys in three steps loses no invocation of real processes under load."""

import secrets
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGCONT, SIGSTOP

import pytest

from localcluster.nats_server import NatsServer
from localcluster.supervisor_client import wait_until
from tests.fuzz.seed_corpus import FUNCTION
from tests.fuzz.serverless_processes import WatchedProcess, new_failures, running_serverless
from tests.integration.runtime_api.live_platform import TOKEN, LivePlatform, running_live_platform

INVOCATIONS = "/api/v1/serverless/invocations"
CALL_INTERVAL_SECONDS = 0.1
TICKET_PROCESSES = ("runtime-api", "activator", "result-store")
OLD, NEW = secrets.token_hex(32), secrets.token_hex(32)


@dataclass
class KeyRotation:
    platform: LivePlatform
    processes: list[WatchedProcess]
    key_file: Path
    accepted: list[str] = field(default_factory=list)
    """The IDs of all accepted invocations."""
    rejected: list[str] = field(default_factory=list)

    def write_keys(self, *keys: str) -> None:
        """Replace the key file, and wait until each process has logged that it reloaded the file."""
        before = {each.log: reload_count(each) for each in self.ticket_processes}
        replace_file(self.key_file, *keys)
        wait_until(
            lambda: all(reload_count(each) > before[each.log] for each in self.ticket_processes),
            30,
            lambda: f"a process has not reloaded the keys: {new_failures(self.processes)}",
        )

    @property
    def ticket_processes(self) -> list[WatchedProcess]:
        return [each for each in self.processes if each.name in TICKET_PROCESSES]

    @contextmanager
    def stopped_worker(self) -> Iterator[None]:
        """Stop the worker, so that dispatched invocations wait."""
        (worker,) = (each.process for each in self.processes if each.name == "worker-sidecar")
        worker.send_signal(SIGSTOP)
        try:
            yield
        finally:
            worker.send_signal(SIGCONT)

    @contextmanager
    def load(self) -> Iterator[None]:
        """Invoke the function through all replicas in turn, synchronously and asynchronously."""
        stopping = threading.Event()
        with ThreadPoolExecutor(32) as calls:

            def run() -> None:
                number = 0
                while not stopping.wait(CALL_INTERVAL_SECONDS):
                    calls.submit(self.invoke, number)
                    number += 1

            callers = threading.Thread(target=run)
            callers.start()
            try:
                yield
            finally:
                stopping.set()
                callers.join()

    def invoke(self, number: int) -> None:
        replica = self.platform.shared_replicas[number % len(self.platform.shared_replicas)]
        invocation_id, mode = str(uuid.uuid4()), "sync" if number % 4 >= 2 else "async"
        call = {"invocationID": invocation_id, "serverlessRequestID": FUNCTION, "mode": mode, "payload": {"n": number}}
        reply = replica.request(INVOCATIONS, "POST", call, TOKEN)
        if reply.status in (200, 202):
            self.accepted.append(invocation_id)
        else:
            self.rejected.append(f"{mode}: {reply}")

    def can_invoke(self) -> bool:
        self.invoke(number=2)
        return bool(self.accepted)

    def state(self, invocation_id: str) -> str:
        reply = self.platform.shared_replicas[0].request(f"{INVOCATIONS}/{invocation_id}", token=TOKEN)
        return str(reply.json["data"]["state"] if reply.status == 200 else reply)

    def wait_finished(self) -> None:
        for invocation_id in list(self.accepted):
            wait_until(
                lambda: self.state(invocation_id) == "succeeded",  # noqa: B023 - called in this iteration only
                60,
                lambda: f"{invocation_id} is {self.state(invocation_id)}: {self.ignored()}",  # noqa: B023
            )

    def ignored(self) -> list[str]:
        """The processes that have ignored a message without a valid ticket."""
        text = b"messages without a valid ticket ignored"
        return [each.name for each in self.processes if text in each.log.read_bytes()]


def reload_count(process: WatchedProcess) -> int:
    return process.log.read_bytes().count(b"ticket key file reloaded")


def replace_file(path: Path, *lines: str) -> None:
    """Replace the file at once, as the kubelet does."""
    staging = path.with_suffix(".new")
    staging.write_text("".join(f"{line}\n" for line in lines))
    staging.rename(path)


@pytest.fixture
def rotation(tmp_path: Path, nats: NatsServer) -> Iterator[KeyRotation]:
    key_file = tmp_path / "ticket-keys"
    replace_file(key_file, OLD)
    tickets = {"tickets": {"keyFile": str(key_file)}}
    with (
        running_live_platform(tmp_path, nats.create_account(), replicas=2, **tickets) as platform,
        running_serverless(platform, tmp_path, tickets) as (processes, _),
    ):
        yield KeyRotation(platform, processes, key_file)


def test_rotation_in_three_steps_under_load_loses_and_ignores_no_invocation(rotation: KeyRotation) -> None:
    wait_until(rotation.can_invoke, 60, lambda: f"no invocation succeeds: {rotation.rejected}")
    rotation.wait_finished()  # so that all processes have started
    rotation.rejected.clear()
    with rotation.load():
        rotation.write_keys(OLD, NEW)
        with rotation.stopped_worker():  # these invocations have tickets of the old key when the new key signs
            time.sleep(1)
            rotation.write_keys(NEW, OLD)
        time.sleep(1)
        rotation.wait_finished()  # instead of the wait for one day
        rotation.write_keys(NEW)
        time.sleep(1)
    rotation.wait_finished()
    assert rotation.rejected == []
    assert rotation.ignored() == []
    assert new_failures(rotation.processes) == []
    assert len(rotation.accepted) > 30
