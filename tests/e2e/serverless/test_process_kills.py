"""Each of thousands of invocations has one stored result, although the test kills every kind of process in turn.

The variable `INVOCATIONS` sets their number.
"""

import asyncio
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

INVOCATION_COUNT = int(os.environ.get("INVOCATIONS", "5000"))
MAX_CONCURRENT_REQUESTS = 48
KILL_INTERVAL_SECONDS = 2.0
"""Interval between two kills."""

KILLED_PROCESSES = {
    "a framework": r"GPU_RUNTIME_KILLED_FUNCTION",
    "a sidecar": r"gpu-runtime\0worker-sidecar\0",
    "an activator": r"gpu-runtime\0activator\0",
    "the result store": r"gpu-runtime\0result-store\0",
    "a replica of the API": r"gpu-runtime\0runtime-api\0",
    "the NATS server": r"nats-server\0",
}
"""Regular expressions for the command lines of the processes that the test kills."""

COUNTING_FUNCTION_SOURCE = """
import socket  # GPU_RUNTIME_KILLED_FUNCTION
from gpu_runtime.framework import handler, serve

counter = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

@handler
async def run(request):
    counter.sendto(request.invocation_id.encode(), ("{host}", {port}))
    return request.payload

serve()
"""


@dataclass
class ExecutionCounter:
    """Counts how often each invocation ran. The function sends a UDP datagram for each run."""

    port: int
    runs: Counter[str] = field(default_factory=Counter)


@contextmanager
def execution_counter(node: Node) -> Iterator[ExecutionCounter]:
    """Receive datagrams in a thread until the block ends."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        receiver.bind((node.network.host_ip, 0))
        counter = ExecutionCounter(receiver.getsockname()[1])

        def listen() -> None:
            while datagram := receiver.recv(1024):
                counter.runs[datagram.decode()] += 1

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield counter
        finally:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stopper:
                stopper.sendto(b"", receiver.getsockname())
            thread.join()


def matching_pids(node: Node, pattern: str) -> list[int]:
    """Return the PIDs, in the namespace of the host, of matching processes in the process namespace of the node."""
    supervisor_pid, pids = node.processes.supervisor_pid(), []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().decode(errors="replace")
            if re.search(pattern, command) and supervisor_pid in _ancestors(int(entry.name)):
                pids.append(int(entry.name))
        except OSError:
            continue
    return pids


def _ancestors(pid: int) -> set[int]:
    seen: set[int] = set()
    while pid > 1 and pid not in seen:
        seen.add(pid)
        status = Path(f"/proc/{pid}/status").read_text()
        pid = int(status.partition("PPid:")[2].split()[0])
    return seen


async def kill_round_robin(node: Node, done: asyncio.Event, killed: Counter[str]) -> None:
    """Kill one process at an interval, each kind in turn, until the API has accepted all invocations.

    On a fast machine, the API may accept all of them before every kind was killed once. Then the workers still run
    them.
    """
    for kind, pattern in itertools.cycle(KILLED_PROCESSES.items()):
        await asyncio.sleep(KILL_INTERVAL_SECONDS)
        if done.is_set() and killed.keys() == KILLED_PROCESSES.keys():
            return
        # If the process is still restarting after its last kill, skip it in this round.
        for pid in (await asyncio.to_thread(matching_pids, node, pattern))[:1]:
            os.kill(pid, signal.SIGKILL)
            killed[kind] += 1


async def invoke_all(node: Node, function: DeployedFunction) -> Counter[int]:
    """Send every invocation until the API accepts it. A repeated request is the same invocation."""
    numbers = iter(range(INVOCATION_COUNT))
    statuses: Counter[int] = Counter()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:

        async def caller() -> None:
            for number in numbers:
                while True:
                    status = await _post(session, node, function.name, number)
                    statuses[status] += 1
                    if status in (200, 202):
                        break
                    assert status in (0, 429, 503), status
                    await asyncio.sleep(0.2)

        async with asyncio.TaskGroup() as callers:
            for _ in range(MAX_CONCURRENT_REQUESTS):
                callers.create_task(caller())
    return statuses


async def _post(session: aiohttp.ClientSession, node: Node, function: str, number: int) -> int:
    """Return the HTTP status, or 0 if there was no response."""
    body = {"invocationID": f"kill-{number}", "serverlessRequestID": function, "payload": {"n": number}}
    try:
        async with session.post(
            f"{api_url(node)}/serverless/invocations", json=body | {"timeoutSeconds": 600}
        ) as response:
            return response.status
    except (aiohttp.ClientError, TimeoutError):
        return 0


@pytest.mark.timeout(900)
async def test_every_invocation_has_one_result_while_processes_are_killed(deployed_platform: Node) -> None:
    node, function = deployed_platform, DeployedFunction(deployed_platform, "killed")
    killed: Counter[str] = Counter()
    with execution_counter(node) as counter:
        source = COUNTING_FUNCTION_SOURCE.format(host=node.network.host_ip, port=counter.port)
        function.create(source, maxWorkers=2, concurrency=16, minAvailableCount=2, idleTimeoutSeconds=60)
        done = asyncio.Event()
        killer = asyncio.create_task(kill_round_robin(node, done, killed))
        started = time.monotonic()
        statuses = await invoke_all(node, function)
        done.set()
        await killer
        accept_seconds = time.monotonic() - started
        results = await function.results(INVOCATION_COUNT, 300)
    states = Counter(result["state"] for result in results.values())
    attempts = Counter(result["attempts"] for result in results.values())
    repeated_runs = sum(count - 1 for count in counter.runs.values())
    print(
        f"\n{INVOCATION_COUNT} accepted in {accept_seconds:.0f} s, HTTP statuses {dict(statuses)};"
        f" killed {dict(killed)};"
        f" results {dict(states)}, by attempts {dict(attempts)};"
        f" {counter.runs.total()} runs, {repeated_runs} of them repeated"
    )
    assert set(results) == {f"kill-{number}" for number in range(INVOCATION_COUNT)}
    assert states == {"succeeded": INVOCATION_COUNT}, [
        each for each in results.values() if each["state"] != "succeeded"
    ][:5]
    assert set(KILLED_PROCESSES) == set(killed)
    function.delete()
