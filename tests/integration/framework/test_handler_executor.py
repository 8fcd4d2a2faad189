"""Calls at the same time, past their deadline, and without a caller."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from localcluster.supervisor_client import wait_until
from tests.integration.framework.framework_process import FrameworkProcess, connect_unix, running_framework

MEETING = """
import socket
import threading
from gpu_runtime.framework import handler, serve

barrier = threading.Barrier(4)

@handler
def run(request):
    return barrier.wait(60)

serve()
"""

ASYNC_MEETING = """
import asyncio
from gpu_runtime.framework import handler, serve

arrived = []
all_here = asyncio.Event()

@handler
async def run(request):
    arrived.append(request)
    if len(arrived) == 4:
        all_here.set()
    await asyncio.wait_for(all_here.wait(), 60)
    return len(arrived)

serve()
"""

TWO_AT_A_TIME = """
import socket
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

HANGING = """
import pathlib, time
from gpu_runtime.framework import handler, serve

place = pathlib.Path(PLACE)

@handler
def run(request):
    if request.payload == "hang":
        (place / "began").touch()
        while not (place / "let go").exists():
            time.sleep(0.01)
    return "done"

serve()
"""

ASYNC_HANGING = """
import asyncio, pathlib
from gpu_runtime.framework import handler, serve

place = pathlib.Path(PLACE)

@handler
async def run(request):
    if request.payload == "hang":
        (place / "began").touch()
        try:
            await asyncio.Event().wait()
        finally:
            (place / "ended").touch()
    if request.payload == "cancel":
        raise asyncio.CancelledError
    return "done"

serve()
"""


def deadline_header(seconds: float) -> dict[str, str]:
    return {"Gpu-Runtime-Deadline": (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()}


def wait_file(path: Path) -> None:
    wait_until(path.exists, 60, lambda: f"no {path}")


def is_healthy(asked: FrameworkProcess) -> bool:
    return asked.request("GET", "/healthz").status == 200


@pytest.mark.parametrize("source", [MEETING, ASYNC_MEETING], ids=["threads", "async"])
def test_calls_run_at_the_same_time(source: str, socket_dir: Path) -> None:
    """Each of the four returns only when all four have begun."""
    with running_framework(source, socket_dir, GPU_RUNTIME_CONCURRENCY="4") as asked, ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda _: asked.invoke(), range(4)))
    assert [reply.status for reply in replies] == [200] * 4


def test_calls_above_the_concurrency_wait(socket_dir: Path) -> None:
    with (
        running_framework(TWO_AT_A_TIME, socket_dir, GPU_RUNTIME_CONCURRENCY="2") as asked,
        ThreadPoolExecutor(12) as pool,
    ):
        names = {reply.body.decode() for reply in pool.map(lambda _: asked.invoke(), range(60))}
    assert names <= {"handler-1", "handler-2"}


def test_expired_deadline_does_not_call_the_handler(socket_dir: Path) -> None:
    with running_framework(f"PLACE = {str(socket_dir)!r}\n{HANGING}", socket_dir) as asked:
        reply = asked.invoke("hang", deadline_header(-1))
        assert (reply.status, reply.error[0]) == (504, "DeadlineExceeded")
        assert asked.invoke("x", deadline_header(60)).status == 200
        assert not (socket_dir / "began").exists()


def test_thread_past_its_deadline_is_answered_504_and_occupies_its_slot(socket_dir: Path) -> None:
    with running_framework(f"PLACE = {str(socket_dir)!r}\n{HANGING}", socket_dir) as asked:
        reply = asked.invoke("hang", deadline_header(2))
        assert (reply.status, reply.error[0]) == (504, "DeadlineExceeded")
        busy = asked.invoke("x", deadline_header(60))
        assert (busy.status, busy.error[0]) == (503, "Busy")
        stuck = asked.request("GET", "/healthz")
        assert (stuck.status, stuck.error[0]) == (503, "Stuck")
        (socket_dir / "let go").touch()
        wait_until(lambda: is_healthy(asked), 60, lambda: asked.log)
        assert asked.invoke("x", deadline_header(60)).status == 200
        assert "its thread holds a slot" in asked.log


def test_waiting_for_a_slot_ends_at_the_deadline(socket_dir: Path) -> None:
    with running_framework(f"PLACE = {str(socket_dir)!r}\n{HANGING}", socket_dir) as asked:
        first = threading.Thread(target=lambda: asked.invoke("hang"))
        first.start()
        wait_file(socket_dir / "began")
        reply = asked.invoke("x", deadline_header(1))
        assert (reply.status, reply.error[0]) == (503, "Busy")
        (socket_dir / "let go").touch()
        first.join()
        assert asked.invoke("x", deadline_header(60)).status == 200


def test_an_async_handler_is_cancelled_at_its_deadline(socket_dir: Path) -> None:
    with running_framework(f"PLACE = {str(socket_dir)!r}\n{ASYNC_HANGING}", socket_dir) as asked:
        assert asked.invoke("hang", deadline_header(2)).status == 504
        wait_file(socket_dir / "ended")
        assert asked.invoke("x", deadline_header(60)).status == 200


def test_an_async_handler_is_cancelled_when_its_caller_hangs_up(socket_dir: Path) -> None:
    with running_framework(f"PLACE = {str(socket_dir)!r}\n{ASYNC_HANGING}", socket_dir) as asked:
        with connect_unix(asked.socket) as caller:
            caller.sendall(
                b'POST /invoke HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 6\r\n\r\n"hang"'
            )
            wait_file(socket_dir / "began")
            assert not (socket_dir / "ended").exists()
        wait_file(socket_dir / "ended")
        assert asked.invoke("x").status == 200


def test_half_closed_caller_gets_its_response(socket_dir: Path) -> None:
    with (
        running_framework(f"PLACE = {str(socket_dir)!r}\n{HANGING}", socket_dir) as asked,
        connect_unix(asked.socket) as caller,
    ):
        caller.sendall(b'POST /invoke HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 6\r\n\r\n"hang"')
        wait_file(socket_dir / "began")
        caller.shutdown(socket.SHUT_WR)
        assert is_healthy(asked)  # so it has seen that the caller sends no more
        (socket_dir / "let go").touch()
        assert caller.recv(100).startswith(b"HTTP/1.1 200 OK")


def test_a_handler_that_cancels_itself_has_failed(socket_dir: Path) -> None:
    with running_framework(f"PLACE = {str(socket_dir)!r}\n{ASYNC_HANGING}", socket_dir) as asked:
        assert asked.invoke("cancel").error[0] == "CancelledError"
        assert asked.invoke("x").status == 200
