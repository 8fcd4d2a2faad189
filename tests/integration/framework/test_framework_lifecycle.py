"""The user's process from its start to its end."""

import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpu_runtime.manifests.samples import DOUBLING_PROGRAM
from localcluster.supervisor_client import wait_until
from tests.integration.framework.framework_process import (
    FrameworkProcess,
    FrameworkReply,
    connect_unix,
    is_listening,
    running_framework,
)

WAITING_SOURCE = """
import pathlib, time
from gpu_runtime.framework import handler, serve

@handler
def run(request):
    place = pathlib.Path(request.payload)
    (place / "began").touch()
    while not (place / "let go").exists():
        time.sleep(0.01)
    return "finished" * 100_000

serve()
"""


def run_source(source: str, *options: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, *options, "-c", source]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False
    )


def wait_exit(running: FrameworkProcess) -> int:
    return running.process.wait(60)


def test_sample_function_runs(socket_dir: Path) -> None:
    with running_framework(DOUBLING_PROGRAM, socket_dir) as asked:
        assert asked.invoke({"n": 21}).json == {"n": 42}


def test_socket_mode_is_666_for_any_umask(socket_dir: Path) -> None:
    with running_framework(f"import os; os.umask(0o077)\n{DOUBLING_PROGRAM}", socket_dir) as asked:
        assert stat.S_IMODE(Path(asked.socket).stat().st_mode) == 0o666


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv") or not shutil.which("curl"),
    reason="LEFT OUT: other users need root",
)
def test_caller_with_another_uid_can_connect(socket_dir: Path) -> None:
    """The framework runs as one user, its caller as another, in a directory that both may enter."""
    socket_dir.chmod(0o777)
    framework = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups"]
    caller = ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups", "curl", "--silent", "--show-error"]
    with running_framework(DOUBLING_PROGRAM, socket_dir, wrap=framework) as asked:
        assert Path(asked.socket).stat().st_uid == 12345
        answer = subprocess.run(
            [*caller, "--unix-socket", asked.socket, "--json", '{"n": 2}', "http://framework/invoke"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert (answer.stdout, answer.stderr) == ('{"n":4}', "")


def test_socket_of_a_killed_process_is_replaced(socket_dir: Path) -> None:
    for _ in range(3):
        with running_framework(DOUBLING_PROGRAM, socket_dir) as asked:
            assert asked.invoke({"n": 1}).json == {"n": 2}
            asked.process.send_signal(signal.SIGKILL)
            wait_exit(asked)
            assert Path(asked.socket).is_socket()


def test_socket_of_a_running_process_is_not_replaced(socket_dir: Path) -> None:
    with running_framework(DOUBLING_PROGRAM, socket_dir) as asked:
        second = run_source(DOUBLING_PROGRAM, GPU_RUNTIME_SOCKET=asked.socket)
        assert second.returncode == 1
        assert "another process serves at" in second.stderr.splitlines()[-1]
        assert asked.invoke({"n": 1}).json == {"n": 2}


def test_sigterm_finishes_running_calls(socket_dir: Path) -> None:
    """The call in progress gets its whole answer, nobody new gets in, idle connections do not hold it up."""
    replies: list[FrameworkReply] = []
    with running_framework(WAITING_SOURCE, socket_dir) as asked, connect_unix(asked.socket):
        call = threading.Thread(target=lambda: replies.append(asked.invoke(str(socket_dir))))
        call.start()
        wait_until((socket_dir / "began").exists, 60, lambda: asked.log)
        asked.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not is_listening(asked.socket), 60, lambda: "it still takes connections")
        assert asked.process.poll() is None
        (socket_dir / "let go").touch()
        assert wait_exit(asked) == 0
        call.join()
        assert not Path(asked.socket).exists()
    assert (replies[0].status, replies[0].body) == (200, b"finished" * 100_000)
    assert replies[0].headers["Connection"] == "close"


def socket_buffer_bytes() -> int:
    """How much the kernel takes for somebody who does not read."""
    writing, unread = socket.socketpair()
    with writing, unread:
        writing.setblocking(False)
        return writing.send(bytes(10_000_000))


def test_sigterm_waits_until_the_response_is_sent(socket_dir: Path) -> None:
    """What the kernel did not take yet is still in the process."""
    size = socket_buffer_bytes() + 20_000
    source = f"from gpu_runtime.framework import handler, serve\nhandler(lambda request: bytes({size}))\nserve()"
    with running_framework(source, socket_dir) as asked, connect_unix(asked.socket) as caller:
        caller.sendall(b"POST /invoke HTTP/1.1\r\n\r\n")
        assert select.select([caller], [], [], 60)[0]
        asked.process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            asked.process.wait(1)
        answer = b"".join(iter(lambda: caller.recv(65536), b""))
        assert wait_exit(asked) == 0
    assert len(answer.partition(b"\r\n\r\n")[2]) == size


def test_sigterm_does_not_wait_for_a_handler_without_caller(socket_dir: Path) -> None:
    with running_framework(WAITING_SOURCE, socket_dir) as asked:
        with connect_unix(asked.socket) as caller:
            body = f'"{socket_dir}"'.encode()
            caller.sendall(b"POST /invoke HTTP/1.1\r\nContent-Type: application/json\r\n")
            caller.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
            wait_until((socket_dir / "began").exists, 60, lambda: asked.log)
        wait_until(lambda: "its caller hung up" in asked.log, 60, lambda: asked.log)
        asked.process.send_signal(signal.SIGTERM)
        assert wait_exit(asked) == 0


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="LEFT OUT: a process namespace needs root")
def test_the_first_process_of_a_container_ends_on_sigterm(socket_dir: Path) -> None:
    with running_framework(DOUBLING_PROGRAM, socket_dir, wrap=["unshare", "--pid", "--fork", "--kill-child"]) as asked:
        child = Path(f"/proc/{asked.process.pid}/task/{asked.process.pid}/children").read_text()
        os.kill(int(child), signal.SIGTERM)
        assert wait_exit(asked) == 0


@pytest.mark.parametrize(
    ("source", "environment", "part"),
    [
        ("from gpu_runtime.framework import serve; serve()", {}, "there is no handler"),
        (DOUBLING_PROGRAM, {"GPU_RUNTIME_CONCURRENCY": "many"}, "GPU_RUNTIME_CONCURRENCY is 'many'"),
        (DOUBLING_PROGRAM, {"GPU_RUNTIME_INVOKE_PATH": "invoke"}, "GPU_RUNTIME_INVOKE_PATH is 'invoke'"),
        (DOUBLING_PROGRAM, {"GPU_RUNTIME_SOCKET": "/" + "a" * 200}, "longer than Linux allows"),
        (
            DOUBLING_PROGRAM,
            {"GPU_RUNTIME_SOCKET": "/nowhere/at/all.sock"},
            "cannot listen at /nowhere/at/all.sock: No such",
        ),
        (DOUBLING_PROGRAM, {"GPU_RUNTIME_SOCKET": sys.executable}, "no socket"),
        (
            DOUBLING_PROGRAM.replace("serve()", "handler(run)"),
            {},
            "there is a handler already, run; run needs a process",
        ),
        (DOUBLING_PROGRAM.replace("@handler", "@handler(3)"), {}, "@handler takes no arguments"),
    ],
)
def test_startup_failure_is_the_last_log_line(source: str, environment: dict[str, str], part: str) -> None:
    """The last line of the log is what an operator sees in the unit's condition."""
    failed = run_source(source, **environment)
    assert failed.returncode == 1
    assert part in failed.stderr.splitlines()[-1]


def test_framework_imports_only_the_standard_library() -> None:
    source = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[3] / "src")!r})
import gpu_runtime.framework
names = {{name.partition(".")[0] for name in sys.modules}} - set(sys.stdlib_module_names) - {{"__main__"}}
ours = {{name for name in sys.modules if name.startswith("gpu_runtime.")}}
print(sorted(names), all(name.startswith("gpu_runtime.framework") for name in ours))
"""
    assert run_source(source, "-I", "-S").stdout == "['gpu_runtime'] True\n"


def test_framework_works_when_copied(socket_dir: Path) -> None:
    source = Path(__file__).parents[3] / "src" / "gpu_runtime"
    (socket_dir / "gpu_runtime").mkdir()
    shutil.copytree(source / "framework", socket_dir / "gpu_runtime" / "framework")
    copied = f"import sys; sys.path.insert(0, {str(socket_dir)!r})\n{DOUBLING_PROGRAM}"
    with running_framework(copied, socket_dir, LC_ALL="C", TZ="Asia/Kathmandu", PYTHONSAFEPATH="1") as asked:
        assert asked.invoke({"n": 1}, {"Gpu-Runtime-Deadline": "2999-01-01T00:00:00Z"}).json == {"n": 2}
