"""The lifecycle of the user's process: startup, the socket file, and shutdown on SIGTERM."""

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
from tests.conftest import SKIP_REASON_PREFIX
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
    directory = pathlib.Path(request.payload)
    (directory / "started").touch()
    while not (directory / "release").exists():
        time.sleep(0.01)
    return "finished" * 100_000

serve()
"""

SLOW_COMMAND_SOURCE = """
import sys, time, types
from gpu_runtime.cli.main import main

def import_slowly(*_):
    print("loading", flush=True)
    time.sleep(600)

sys.meta_path.insert(0, types.SimpleNamespace(find_spec=import_slowly))
main(["worker-sidecar", "--config", "settings.yaml"])
"""
"""A command of the platform that takes minutes to import its process."""


def run_source(source: str, *options: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, *options, "-c", source]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False
    )


def wait_exit(running: FrameworkProcess) -> int:
    return running.process.wait(60)


def test_sample_function_runs(socket_dir: Path) -> None:
    with running_framework(DOUBLING_PROGRAM, socket_dir) as framework:
        assert framework.invoke({"n": 21}).json == {"n": 42}


def test_socket_mode_is_666_for_any_umask(socket_dir: Path) -> None:
    with running_framework(f"import os; os.umask(0o077)\n{DOUBLING_PROGRAM}", socket_dir) as framework:
        assert stat.S_IMODE(Path(framework.socket).stat().st_mode) == 0o666


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv") or not shutil.which("curl"),
    reason=f"{SKIP_REASON_PREFIX}other users need root",
)
def test_caller_with_another_uid_can_connect(socket_dir: Path) -> None:
    """The framework and its caller run as different users, and both may enter the directory."""
    socket_dir.chmod(0o777)
    as_framework_user = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups"]
    as_caller = ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups", "curl", "--silent", "--show-error"]
    with running_framework(DOUBLING_PROGRAM, socket_dir, wrap=as_framework_user) as framework:
        assert Path(framework.socket).stat().st_uid == 12345
        curl = subprocess.run(
            [*as_caller, "--unix-socket", framework.socket, "--json", '{"n": 2}', "http://framework/invoke"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert (curl.stdout, curl.stderr) == ('{"n":4}', "")


def test_socket_of_a_killed_process_is_replaced(socket_dir: Path) -> None:
    for _ in range(3):
        with running_framework(DOUBLING_PROGRAM, socket_dir) as framework:
            assert framework.invoke({"n": 1}).json == {"n": 2}
            framework.process.send_signal(signal.SIGKILL)
            wait_exit(framework)
            assert Path(framework.socket).is_socket()


def test_socket_of_a_running_process_is_not_replaced(socket_dir: Path) -> None:
    with running_framework(DOUBLING_PROGRAM, socket_dir) as framework:
        second = run_source(DOUBLING_PROGRAM, GPU_RUNTIME_SOCKET=framework.socket)
        assert second.returncode == 1
        assert "another process listens on" in second.stderr.splitlines()[-1]
        assert framework.invoke({"n": 1}).json == {"n": 2}


def test_sigterm_finishes_running_calls(socket_dir: Path) -> None:
    """The call in progress gets its complete response. The process accepts no new connection, and idle connections do
    not delay the exit."""
    replies: list[FrameworkReply] = []
    with running_framework(WAITING_SOURCE, socket_dir) as framework, connect_unix(framework.socket):
        call = threading.Thread(target=lambda: replies.append(framework.invoke(str(socket_dir))))
        call.start()
        wait_until((socket_dir / "started").exists, 60, lambda: framework.log)
        framework.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not is_listening(framework.socket), 60, lambda: "the process still accepts connections")
        assert framework.process.poll() is None
        (socket_dir / "release").touch()
        assert wait_exit(framework) == 0
        call.join()
        assert not Path(framework.socket).exists()
    assert (replies[0].status, replies[0].body) == (200, b"finished" * 100_000)
    assert replies[0].headers["Connection"] == "close"


def socket_buffer_bytes() -> int:
    """Return how many bytes the kernel buffers for a peer that does not read."""
    writer, reader = socket.socketpair()
    with writer, reader:
        writer.setblocking(False)
        return writer.send(bytes(10_000_000))


def test_sigterm_waits_until_the_response_is_sent(socket_dir: Path) -> None:
    """The process must not exit before the kernel has accepted the whole response."""
    size = socket_buffer_bytes() + 20_000
    source = f"from gpu_runtime.framework import handler, serve\nhandler(lambda request: bytes({size}))\nserve()"
    with running_framework(source, socket_dir) as framework, connect_unix(framework.socket) as caller:
        caller.sendall(b"POST /invoke HTTP/1.1\r\n\r\n")
        assert select.select([caller], [], [], 60)[0]
        framework.process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            framework.process.wait(1)
        response = b"".join(iter(lambda: caller.recv(65536), b""))
        assert wait_exit(framework) == 0
    assert len(response.partition(b"\r\n\r\n")[2]) == size


def test_sigterm_does_not_wait_for_a_handler_without_caller(socket_dir: Path) -> None:
    with running_framework(WAITING_SOURCE, socket_dir) as framework:
        with connect_unix(framework.socket) as caller:
            body = f'"{socket_dir}"'.encode()
            caller.sendall(b"POST /invoke HTTP/1.1\r\nContent-Type: application/json\r\n")
            caller.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
            wait_until((socket_dir / "started").exists, 60, lambda: framework.log)
        wait_until(lambda: "the caller disconnected" in framework.log, 60, lambda: framework.log)
        framework.process.send_signal(signal.SIGTERM)
        assert wait_exit(framework) == 0


needs_process_namespace = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason=f"{SKIP_REASON_PREFIX}a process namespace needs root"
)
AS_FIRST_PROCESS = ["unshare", "--pid", "--fork", "--kill-child"]


def terminate_first_process(unshare: "subprocess.Popen[str] | subprocess.Popen[bytes]") -> None:
    """Send SIGTERM to the first process of the namespace that `unshare` has created."""
    child = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text()
    os.kill(int(child), signal.SIGTERM)


@needs_process_namespace
def test_first_process_of_a_container_exits_on_sigterm(socket_dir: Path) -> None:
    with running_framework(DOUBLING_PROGRAM, socket_dir, wrap=AS_FIRST_PROCESS) as framework:
        terminate_first_process(framework.process)
        assert wait_exit(framework) == 0


@needs_process_namespace
@pytest.mark.parametrize(
    "arguments",
    [
        ["-c", "import gpu_runtime.framework, time; print('loading', flush=True); time.sleep(600)"],
        ["-c", SLOW_COMMAND_SOURCE],
    ],
    ids=["framework", "command"],
)
def test_first_process_of_a_container_exits_on_sigterm_while_it_loads(arguments: list[str]) -> None:
    """Without a handler, the kernel would ignore the signal, and the pod would keep its GPU for minutes."""
    with subprocess.Popen(
        [*AS_FIRST_PROCESS, sys.executable, *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "loading\n"
            terminate_first_process(process)
            assert process.wait(60) == 128 + signal.SIGTERM
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("source", "environment", "part"),
    [
        ("from gpu_runtime.framework import serve; serve()", {}, "the process has no handler"),
        (DOUBLING_PROGRAM, {"GPU_RUNTIME_CONCURRENCY": "many"}, "GPU_RUNTIME_CONCURRENCY is 'many'"),
        (DOUBLING_PROGRAM, {"GPU_RUNTIME_INVOKE_PATH": "invoke"}, "GPU_RUNTIME_INVOKE_PATH is 'invoke'"),
        (DOUBLING_PROGRAM, {"GPU_RUNTIME_SOCKET": "/" + "a" * 200}, "longer than Linux allows"),
        (
            DOUBLING_PROGRAM,
            {"GPU_RUNTIME_SOCKET": "/nowhere/at/all.sock"},
            "cannot listen on /nowhere/at/all.sock: No such",
        ),
        (DOUBLING_PROGRAM, {"GPU_RUNTIME_SOCKET": sys.executable}, "is not a socket"),
        (
            DOUBLING_PROGRAM.replace("serve()", "handler(run)"),
            {},
            "the process already has the handler run; serve run in another process",
        ),
        (DOUBLING_PROGRAM.replace("@handler", "@handler(3)"), {}, "@handler takes no arguments"),
    ],
)
def test_startup_failure_is_the_last_log_line(source: str, environment: dict[str, str], part: str) -> None:
    """The condition of the unit shows the last log line to the operator."""
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
    with running_framework(copied, socket_dir, LC_ALL="C", TZ="Asia/Kathmandu", PYTHONSAFEPATH="1") as framework:
        assert framework.invoke({"n": 1}, {"Gpu-Runtime-Deadline": "2999-01-01T00:00:00Z"}).json == {"n": 2}
