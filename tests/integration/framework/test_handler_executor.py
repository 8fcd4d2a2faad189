"""Concurrent handler calls, calls past their deadline, and calls whose caller disconnected."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from localcluster.supervisor_client import wait_until
from tests.integration.framework.framework_process import FrameworkProcess, connect_unix, running_framework

BARRIER_SOURCE = """
import threading
from gpu_runtime.framework import handler, serve

barrier = threading.Barrier(4)

@handler
def run(request):
    return barrier.wait(60)

serve()
"""

ASYNC_BARRIER_SOURCE = """
import asyncio
from gpu_runtime.framework import handler, serve

arrived = []
all_arrived = asyncio.Event()

@handler
async def run(request):
    arrived.append(request)
    if len(arrived) == 4:
        all_arrived.set()
    await asyncio.wait_for(all_arrived.wait(), 60)
    return len(arrived)

serve()
"""

TWO_CALLS_SOURCE = """
import threading
from gpu_runtime.framework import handler, serve

running = threading.Semaphore(2)

@handler
def run(request):
    if not running.acquire(blocking=False):
        return "too many"
    threading.Event().wait(0.005)
    running.release()
    return threading.current_thread().name

serve()
"""

HANGING_SOURCE = """
import pathlib, time
from gpu_runtime.framework import handler, serve

directory = pathlib.Path(DIRECTORY)

@handler
def run(request):
    if request.payload == "hang":
        (directory / "started").touch()
        while not (directory / "release").exists():
            time.sleep(0.01)
    return "done"

serve()
"""

ASYNC_HANGING_SOURCE = """
import asyncio, pathlib
from gpu_runtime.framework import handler, serve

directory = pathlib.Path(DIRECTORY)

@handler
async def run(request):
    if request.payload == "hang":
        (directory / "started").touch()
        try:
            await asyncio.Event().wait()
        finally:
            (directory / "finished").touch()
    if request.payload == "cancel":
        raise asyncio.CancelledError
    return "done"

serve()
"""


def deadline_header(seconds: float) -> dict[str, str]:
    return {"Gpu-Runtime-Deadline": (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()}


def wait_file(path: Path) -> None:
    wait_until(path.exists, 60, lambda: f"{path} was not created")


def is_healthy(framework: FrameworkProcess) -> bool:
    return framework.request("GET", "/healthz").status == 200


@pytest.mark.parametrize("source", [BARRIER_SOURCE, ASYNC_BARRIER_SOURCE], ids=["threads", "async"])
def test_calls_run_at_the_same_time(source: str, socket_dir: Path) -> None:
    """Each of the four calls returns only when all four have started."""
    with running_framework(source, socket_dir, GPU_RUNTIME_CONCURRENCY="4") as framework, ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda _: framework.invoke(), range(4)))
    assert [reply.status for reply in replies] == [200] * 4


def test_calls_above_the_concurrency_wait(socket_dir: Path) -> None:
    with (
        running_framework(TWO_CALLS_SOURCE, socket_dir, GPU_RUNTIME_CONCURRENCY="2") as framework,
        ThreadPoolExecutor(12) as pool,
    ):
        names = {reply.body.decode() for reply in pool.map(lambda _: framework.invoke(), range(60))}
    assert names <= {"handler-1", "handler-2"}


def test_expired_deadline_does_not_call_the_handler(socket_dir: Path) -> None:
    with running_framework(f"DIRECTORY = {str(socket_dir)!r}\n{HANGING_SOURCE}", socket_dir) as framework:
        reply = framework.invoke("hang", deadline_header(-1))
        assert (reply.status, reply.error[0]) == (504, "DeadlineExceeded")
        assert framework.invoke("x", deadline_header(60)).status == 200
        assert not (socket_dir / "started").exists()


def test_thread_past_its_deadline_is_answered_504_and_occupies_its_slot(socket_dir: Path) -> None:
    with running_framework(f"DIRECTORY = {str(socket_dir)!r}\n{HANGING_SOURCE}", socket_dir) as framework:
        reply = framework.invoke("hang", deadline_header(2))
        assert (reply.status, reply.error[0]) == (504, "DeadlineExceeded")
        busy = framework.invoke("x", deadline_header(60))
        assert (busy.status, busy.error[0]) == (503, "Busy")
        stuck = framework.request("GET", "/healthz")
        assert (stuck.status, stuck.error[0]) == (503, "Stuck")
        (socket_dir / "release").touch()
        wait_until(lambda: is_healthy(framework), 60, lambda: framework.log)
        assert framework.invoke("x", deadline_header(60)).status == 200
        assert "its thread occupies a slot" in framework.log


def test_waiting_for_a_slot_ends_at_the_deadline(socket_dir: Path) -> None:
    with running_framework(f"DIRECTORY = {str(socket_dir)!r}\n{HANGING_SOURCE}", socket_dir) as framework:
        first = threading.Thread(target=lambda: framework.invoke("hang"))
        first.start()
        wait_file(socket_dir / "started")
        reply = framework.invoke("x", deadline_header(1))
        assert (reply.status, reply.error[0]) == (503, "Busy")
        (socket_dir / "release").touch()
        first.join()
        assert framework.invoke("x", deadline_header(60)).status == 200


def test_async_handler_is_cancelled_at_its_deadline(socket_dir: Path) -> None:
    with running_framework(f"DIRECTORY = {str(socket_dir)!r}\n{ASYNC_HANGING_SOURCE}", socket_dir) as framework:
        assert framework.invoke("hang", deadline_header(2)).status == 504
        wait_file(socket_dir / "finished")
        assert framework.invoke("x", deadline_header(60)).status == 200


def test_async_handler_is_cancelled_when_its_caller_disconnects(socket_dir: Path) -> None:
    with running_framework(f"DIRECTORY = {str(socket_dir)!r}\n{ASYNC_HANGING_SOURCE}", socket_dir) as framework:
        with connect_unix(framework.socket) as caller:
            caller.sendall(
                b'POST /invoke HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 6\r\n\r\n"hang"'
            )
            wait_file(socket_dir / "started")
            assert not (socket_dir / "finished").exists()
        wait_file(socket_dir / "finished")
        assert framework.invoke("x").status == 200


def test_half_closed_caller_gets_its_response(socket_dir: Path) -> None:
    with (
        running_framework(f"DIRECTORY = {str(socket_dir)!r}\n{HANGING_SOURCE}", socket_dir) as framework,
        connect_unix(framework.socket) as caller,
    ):
        caller.sendall(b'POST /invoke HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 6\r\n\r\n"hang"')
        wait_file(socket_dir / "started")
        caller.shutdown(socket.SHUT_WR)
        assert is_healthy(framework)  # so the event loop has processed the half-close
        (socket_dir / "release").touch()
        assert caller.recv(100).startswith(b"HTTP/1.1 200 OK")


def test_handler_that_cancels_itself_fails(socket_dir: Path) -> None:
    with running_framework(f"DIRECTORY = {str(socket_dir)!r}\n{ASYNC_HANGING_SOURCE}", socket_dir) as framework:
        assert framework.invoke("cancel").error[0] == "CancelledError"
        assert framework.invoke("x").status == 200
