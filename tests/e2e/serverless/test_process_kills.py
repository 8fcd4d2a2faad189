"""Ten thousand invocations while everything that carries them is killed in turn: each ends in one stored result."""

import asyncio
import contextlib
import itertools
import os
import re
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from localcluster.node import Node
from tests.e2e.node_api_requests import api_url
from tests.e2e.serverless.deployed_function import DeployedFunction

INVOCATION_COUNT = int(os.environ.get("INVOCATIONS", "10000"))
MAX_CONCURRENT_REQUESTS = 48
KILL_INTERVAL_SECONDS = 3.0
"""Seconds between two kills."""

KILLED_PROCESSES = {
    "a framework": r"GPU_RUNTIME_KILLED_FUNCTION",
    "a sidecar": r"gpu-runtime\0worker-sidecar\0",
    "an activator": r"gpu-runtime\0activator\0",
    "the result store": r"gpu-runtime\0result-store\0",
    "a replica of the API": r"gpu-runtime\0runtime-api\0",
    "the NATS server": r"nats-server\0",
}
"""By what stands in their command lines."""

COUNTING_FUNCTION_SOURCE = """
import socket  # GPU_RUNTIME_KILLED_FUNCTION
from gpu_runtime.framework import handler, serve

told = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

@handler
async def run(request):
    told.sendto(request.invocation_id.encode(), ("{host}", {port}))
    return request.payload

serve()
"""


@dataclass
class ExecutionCounter:
    """Told by the function itself, by datagram: how often each invocation was run."""

    port: int
    counted: Counter[str] = field(default_factory=Counter)


@contextmanager
def execution_counter(node: Node) -> Iterator[ExecutionCounter]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        listening.bind((node.network.host_ip, 0))
        told = ExecutionCounter(listening.getsockname()[1])

        def listen() -> None:
            while said := listening.recv(1024):
                told.counted[said.decode()] += 1

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield told
        finally:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
                last.sendto(b"", listening.getsockname())
            thread.join()


def matching_pids(node: Node, pattern: str) -> list[int]:
    """Those in the node's own process namespace, by this machine's numbers."""
    supervisor, found = node.processes.supervisor_pid(), []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().decode(errors="replace")
            if re.search(pattern, command) and supervisor in _ancestors(int(entry.name)):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def _ancestors(pid: int) -> set[int]:
    seen: set[int] = set()
    while pid > 1 and pid not in seen:
        seen.add(pid)
        status = Path(f"/proc/{pid}/status").read_text()
        pid = int(status.partition("PPid:")[2].split()[0])
    return seen


async def kill_round_robin(node: Node, done: asyncio.Event, killed: Counter[str]) -> None:
    """One process at a time, each kind in its turn, until all calls are accepted."""
    for what, pattern in itertools.cycle(KILLED_PROCESSES.items()):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), KILL_INTERVAL_SECONDS)
        if done.is_set():
            return
        # One that is on its way back from its last end has its turn next time.
        for victim in (await asyncio.to_thread(matching_pids, node, pattern))[:1]:
            os.kill(victim, signal.SIGKILL)
            killed[what] += 1


async def invoke_all(node: Node, function: DeployedFunction) -> Counter[int]:
    """Every call until it is accepted: the same request, sent again, is the same invocation."""
    waiting = iter(range(INVOCATION_COUNT))
    answers: Counter[int] = Counter()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:

        async def caller() -> None:
            for number in waiting:
                while True:
                    status = await _post(session, node, function.name, number)
                    answers[status] += 1
                    if status in (200, 202):
                        break
                    assert status in (0, 429, 503), status
                    await asyncio.sleep(0.2)

        async with asyncio.TaskGroup() as callers:
            for _ in range(MAX_CONCURRENT_REQUESTS):
                callers.create_task(caller())
    return answers


async def _post(session: aiohttp.ClientSession, node: Node, function: str, number: int) -> int:
    """The status; 0 where there was none."""
    body = {"invocationID": f"kill-{number}", "serverlessRequestID": function, "payload": {"n": number}}
    try:
        async with session.post(
            f"{api_url(node)}/serverless/invocations", json=body | {"timeoutSeconds": 600}
        ) as answer:
            return answer.status
    except (aiohttp.ClientError, TimeoutError):
        return 0


@pytest.mark.timeout(900)
async def test_every_invocation_has_one_result_while_processes_are_killed(deployed_platform: Node) -> None:
    node, function = deployed_platform, DeployedFunction(deployed_platform, "killed")
    killed: Counter[str] = Counter()
    with execution_counter(node) as told:
        source = COUNTING_FUNCTION_SOURCE.format(host=node.network.host_ip, port=told.port)
        function.create(source, maxWorkers=2, concurrency=16, minAvailableCount=2, idleTimeoutSeconds=60)
        done = asyncio.Event()
        killing = asyncio.create_task(kill_round_robin(node, done, killed))
        started = time.monotonic()
        answers = await invoke_all(node, function)
        done.set()
        await killing
        accepted = time.monotonic() - started
        results = await function.results(INVOCATION_COUNT, 300)
    states = Counter(result["state"] for result in results.values())
    attempts = Counter(result["attempts"] for result in results.values())
    again = sum(count - 1 for count in told.counted.values())
    print(
        f"\n{INVOCATION_COUNT} accepted in {accepted:.0f} s, answers {dict(answers)}; killed {dict(killed)};"
        f" results {dict(states)}, by attempts {dict(attempts)};"
        f" run {told.counted.total()} times, {again} of them again"
    )
    assert set(results) == {f"kill-{number}" for number in range(INVOCATION_COUNT)}
    assert states == {"succeeded": INVOCATION_COUNT}, [
        each for each in results.values() if each["state"] != "succeeded"
    ][:5]
    assert set(KILLED_PROCESSES) == set(killed)
    function.delete()
