"""The command line: `python -m localcluster --help`."""

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from localcluster import binaries, dev_platform, node
from localcluster.control_plane import CONTROL_PLANE_BINARIES, temporary_control_plane
from localcluster.errors import MissingRequirement
from localcluster.supervisor_client import ProcessFailed


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    # Also where a shell started this in the background, which makes programs ignore Ctrl-C: whoever ends this command
    # wants nothing left half-started.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        return int(options.run(options) or 0)
    except MissingRequirement as unmet:
        print(f"\nCannot go on: {unmet}", file=sys.stderr)
        return 2
    except ProcessFailed as failure:
        print(f"\nFailed: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted; nothing was left half-started.", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="localcluster", description="A real Kubernetes on this machine.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: object, about: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=about, description=about)
        added.set_defaults(run=run)
        return added

    up = command("up", _up, "bring the platform up in the background, or what of it is missing")
    up.add_argument("--api-port", type=int, default=8080, help="where the API is to be on 127.0.0.1 (default 8080)")
    up.add_argument("--nats-port", type=int, default=4222, help="where NATS is to be on 127.0.0.1 (default 4222)")
    command("down", _down, "end every process of the platform; its data stays")
    command("wipe", _wipe, "end every process of the platform and delete its data")
    command("status", _status, "tell what runs")
    logs = command("logs", _logs, "show what the processes said")
    logs.add_argument("name", nargs="?", help="a process or a platform workload; all of them without it")
    logs.add_argument("--follow", action="store_true", help="go on showing what it says")
    command("prepare", _prepare, "build and install everything, start nothing")
    plane = command("control-plane", _control_plane, "run a control plane with simulated nodes until interrupted")
    plane.add_argument("--nodes", type=int, default=4, help="how many simulated nodes (default 4)")
    plane.add_argument("--gpus", type=int, default=8, help="how many GPUs each of them has (default 8)")
    real = command("node", _node, "run a node of its own, beside the platform, until interrupted")
    real.add_argument("--gpus", type=int, default=16, help="how many GPUs it advertises (default 16)")
    return parser


def _up(options: argparse.Namespace) -> None:
    started = time.monotonic()
    forwards = dev_platform.port_forwards(options.api_port, options.nats_port)
    dev_platform.up(forwards)
    print(f"\nThe platform is up ({time.monotonic() - started:.1f} s).\n")
    print("  Kubernetes   export KUBECONFIG=$PWD/.local/kubeconfig PATH=$PWD/.local/bin:$PATH")
    for route in forwards:
        scheme = "http" if route.title == "API" else "nats"
        print(f"  {route.title:<12} {scheme}://127.0.0.1:{route.port}")
    print("  Logs         make logs, or make logs NAME=kube-apiserver")
    print("  Stop         make down keeps the data, make wipe does not")
    print("\nTry next:\n")
    api = f"http://127.0.0.1:{options.api_port}"
    print(f"  curl {api}/api/v1/health")
    print(f"  curl {api}/api/v1/operator/stock-units -H 'Content-Type: application/json' -d @examples/stock.json")
    print("  kubectl get gpuunits -A")
    print(f"  open {api}/swagger/index.html")
    print("\nThe README goes on from there.")


def _down(_: argparse.Namespace) -> None:
    dev_platform.down()
    print("The platform is down; its data stays for the next `make up`.")


def _wipe(_: argparse.Namespace) -> None:
    dev_platform.wipe()
    print("The platform is down and its data is gone.")


def _status(_: argparse.Namespace) -> int:
    local = dev_platform.running_node()
    if local is None:
        print("The platform is down; `make up` starts it.")
        return 1
    print(f"{'PROCESS':<26}{'PID':>8}{'RESTARTS':>10}")
    for process in local.processes.list():
        print(f"{process.name:<26}{process.pid or '-':>8}{process.restarts:>10}")
    print()
    print(local.kubectl("get", "nodes,pods", "--all-namespaces"))
    return 0


def _logs(options: argparse.Namespace) -> int:
    folder = dev_platform.STATE_DIR / "logs"
    if options.name and not (folder / f"{options.name}.log").exists():
        return _pod_logs(options)
    files = [folder / f"{options.name}.log"] if options.name else sorted(folder.glob("*.log"))
    if not files:
        raise MissingRequirement("there are no logs yet: `make up` starts the platform.")
    lines = "--lines=200" if options.name else "--lines=5"
    follow = ["--follow=name"] if options.follow else []
    return subprocess.run(["tail", lines, *follow, *files], check=False).returncode


def _pod_logs(options: argparse.Namespace) -> int:
    local = dev_platform.running_node()
    if local is None:
        raise MissingRequirement(f"there is no log of {options.name}: the platform is down, `make up` starts it.")
    selector = f"--selector=app.kubernetes.io/name={options.name}"
    path = "--output=jsonpath={.items[0].metadata.namespace}"
    namespace = local.kubectl("get", "pods", "--all-namespaces", selector, path, "--ignore-not-found").strip()
    if not namespace:
        names = ", ".join(process.name for process in local.processes.list())
        raise MissingRequirement(f"there is no log of {options.name}: name a platform workload or one of {names}.")
    follow = ["--follow"] if options.follow else []
    kubectl = [str(local.control_plane.binary_paths["kubectl"]), f"--kubeconfig={local.control_plane.kubeconfig}"]
    command = [*kubectl, "logs", f"--namespace={namespace}", selector, "--prefix", "--tail=200", *follow]
    return subprocess.run(command, check=False).returncode


def _prepare(_: argparse.Namespace) -> None:
    binaries.resolve([*CONTROL_PLANE_BINARIES, "kwok"])
    node.prepare()
    print("Everything is there; `make up` starts it.")


def _control_plane(options: argparse.Namespace) -> None:
    with temporary_control_plane(options.nodes, options.gpus) as plane:
        _wait_until_interrupted(plane.kubeconfig)


def _node(options: argparse.Namespace) -> None:
    with node.temporary_node(options.gpus) as local:
        _wait_until_interrupted(local.control_plane.kubeconfig)


def _wait_until_interrupted(kubeconfig: object) -> None:
    print(f"\nRunning until interrupted:\n\n  export KUBECONFIG={kubeconfig}\n", flush=True)
    signal.pause()
