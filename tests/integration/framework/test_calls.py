"""Calls at the same time, past their deadline, and without a caller."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from localcluster.supervisor_client import wait_until
from tests.integration.framework.worker import Worker, dialled, worker

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


def in_(seconds: float) -> dict[str, str]:
    return {"Gpu-Runtime-Deadline": (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()}


def appears(path: Path) -> None:
    wait_until(path.exists, 60, lambda: f"no {path}")


def is_healthy(asked: Worker) -> bool:
    return asked.request("GET", "/healthz").status == 200


@pytest.mark.parametrize("source", [MEETING, ASYNC_MEETING], ids=["threads", "async"])
def test_calls_run_at_the_same_time(source: str, place: Path) -> None:
    """Each of the four returns only when all four have begun."""
    with worker(source, place, GPU_RUNTIME_CONCURRENCY="4") as asked, ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda _: asked.ask(), range(4)))
    assert [reply.status for reply in replies] == [200] * 4


def test_no_more_than_so_many_run_at_a_time_and_the_others_wait(place: Path) -> None:
    with worker(TWO_AT_A_TIME, place, GPU_RUNTIME_CONCURRENCY="2") as asked, ThreadPoolExecutor(12) as pool:
        names = {reply.body.decode() for reply in pool.map(lambda _: asked.ask(), range(60))}
    assert names <= {"handler-1", "handler-2"}


def test_a_deadline_that_has_passed_calls_nobody(place: Path) -> None:
    with worker(f"PLACE = {str(place)!r}\n{HANGING}", place) as asked:
        reply = asked.ask("hang", in_(-1))
        assert (reply.status, reply.error[0]) == (504, "DeadlineExceeded")
        assert asked.ask("x", in_(60)).status == 200
        assert not (place / "began").exists()


def test_a_thread_past_its_deadline_is_answered_for_and_holds_its_slot(place: Path) -> None:
    with worker(f"PLACE = {str(place)!r}\n{HANGING}", place) as asked:
        reply = asked.ask("hang", in_(2))
        assert (reply.status, reply.error[0]) == (504, "DeadlineExceeded")
        busy = asked.ask("x", in_(60))
        assert (busy.status, busy.error[0]) == (503, "Busy")
        stuck = asked.request("GET", "/healthz")
        assert (stuck.status, stuck.error[0]) == (503, "Stuck")
        (place / "let go").touch()
        wait_until(lambda: is_healthy(asked), 60, lambda: asked.log)
        assert asked.ask("x", in_(60)).status == 200
        assert "its thread holds a slot" in asked.log


def test_waiting_for_a_slot_ends_at_the_deadline(place: Path) -> None:
    with worker(f"PLACE = {str(place)!r}\n{HANGING}", place) as asked:
        first = threading.Thread(target=lambda: asked.ask("hang"))
        first.start()
        appears(place / "began")
        reply = asked.ask("x", in_(1))
        assert (reply.status, reply.error[0]) == (503, "Busy")
        (place / "let go").touch()
        first.join()
        assert asked.ask("x", in_(60)).status == 200


def test_an_async_handler_is_cancelled_at_its_deadline(place: Path) -> None:
    with worker(f"PLACE = {str(place)!r}\n{ASYNC_HANGING}", place) as asked:
        assert asked.ask("hang", in_(2)).status == 504
        appears(place / "ended")
        assert asked.ask("x", in_(60)).status == 200


def test_an_async_handler_is_cancelled_when_its_caller_hangs_up(place: Path) -> None:
    with worker(f"PLACE = {str(place)!r}\n{ASYNC_HANGING}", place) as asked:
        with dialled(asked.socket) as caller:
            caller.sendall(
                b'POST /invoke HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 6\r\n\r\n"hang"'
            )
            appears(place / "began")
            assert not (place / "ended").exists()
        appears(place / "ended")
        assert asked.ask("x").status == 200


def test_a_caller_that_sends_no_more_still_gets_its_answer(place: Path) -> None:
    with worker(f"PLACE = {str(place)!r}\n{HANGING}", place) as asked, dialled(asked.socket) as caller:
        caller.sendall(b'POST /invoke HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 6\r\n\r\n"hang"')
        appears(place / "began")
        caller.shutdown(socket.SHUT_WR)
        assert is_healthy(asked)  # so it has seen that the caller sends no more
        (place / "let go").touch()
        assert caller.recv(100).startswith(b"HTTP/1.1 200 OK")


def test_a_handler_that_cancels_itself_has_failed(place: Path) -> None:
    with worker(f"PLACE = {str(place)!r}\n{ASYNC_HANGING}", place) as asked:
        assert asked.ask("cancel").error[0] == "CancelledError"
        assert asked.ask("x").status == 200
