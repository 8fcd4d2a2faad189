"""The command line of the local clusters: `python -m localcluster --help`."""

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
    # A shell that starts a program in the background makes the program ignore SIGINT. Both signals must still stop the
    # command in an orderly way, so that no partially started platform is left.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        return int(options.run(options) or 0)
    except MissingRequirement as error:
        print(f"\nCannot continue: {error}", file=sys.stderr)
        return 2
    except ProcessFailed as error:
        print(f"\nFailed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted. All started processes were stopped.", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="localcluster", description="Run a real Kubernetes cluster on this machine.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: object, description: str) -> argparse.ArgumentParser:
        subparser = commands.add_parser(name, help=description, description=description)
        subparser.set_defaults(run=run)
        return subparser

    up = command("up", _up, "start the platform in the background, or the parts of it that are not running")
    up.add_argument("--api-port", type=int, default=8080, help="port of the API on 127.0.0.1 (default 8080)")
    up.add_argument("--nats-port", type=int, default=4222, help="port of NATS on 127.0.0.1 (default 4222)")
    command("down", _down, "stop every process of the platform and keep its data")
    command("wipe", _wipe, "stop every process of the platform and delete its data")
    command("status", _status, "show the processes, nodes and pods of the platform")
    logs = command("logs", _logs, "show the logs of the platform")
    logs.add_argument("name", nargs="?", help="a process or a platform workload (default: all processes)")
    logs.add_argument("--follow", action="store_true", help="keep showing new lines")
    command("prepare", _prepare, "build and install all requirements without starting a process")
    plane = command("control-plane", _control_plane, "run a control plane with simulated nodes until interrupted")
    plane.add_argument("--nodes", type=int, default=4, help="number of simulated nodes (default 4)")
    plane.add_argument("--gpus", type=int, default=8, help="number of GPUs of each node (default 8)")
    node_command = command("node", _node, "run a temporary node beside the platform until interrupted")
    node_command.add_argument(
        "--gpus", type=int, default=16, help="number of GPUs that the node advertises (default 16)"
    )
    return parser


def _up(options: argparse.Namespace) -> None:
    started_at = time.monotonic()
    forwards = dev_platform.port_forwards(options.api_port, options.nats_port)
    dev_platform.up(forwards)
    print(f"\nThe platform is up ({time.monotonic() - started_at:.1f} s).\n")
    print("  Kubernetes   export KUBECONFIG=$PWD/.local/kubeconfig PATH=$PWD/.local/bin:$PATH")
    for forward in forwards:
        scheme = "http" if forward.title == "API" else "nats"
        print(f"  {forward.title:<12} {scheme}://127.0.0.1:{forward.port}")
    print("  Logs         make logs, or make logs NAME=kube-apiserver")
    print("  Stop         make down keeps the data, make wipe deletes it")
    print("\nTry next:\n")
    api = f"http://127.0.0.1:{options.api_port}"
    print(f"  curl {api}/api/v1/health")
    print(f"  curl {api}/api/v1/operator/stock-units -H 'Content-Type: application/json' -d @examples/stock.json")
    print("  kubectl get gpuunits -A")
    print(f"  open {api}/swagger/index.html")
    print("\nThe README continues from here.")


def _down(_: argparse.Namespace) -> None:
    dev_platform.down()
    print("The platform is down. Its data is kept for the next `make up`.")


def _wipe(_: argparse.Namespace) -> None:
    dev_platform.wipe()
    print("The platform is down and its data is deleted.")


def _status(_: argparse.Namespace) -> int:
    local = dev_platform.running_node()
    if local is None:
        print("The platform is down. Run `make up` to start it.")
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
        raise MissingRequirement("there are no logs yet: run `make up` to start the platform.")
    lines = "--lines=200" if options.name else "--lines=5"
    follow = ["--follow=name"] if options.follow else []
    return subprocess.run(["tail", lines, *follow, *files], check=False).returncode


def _pod_logs(options: argparse.Namespace) -> int:
    local = dev_platform.running_node()
    if local is None:
        raise MissingRequirement(
            f"there is no log of {options.name}, and the platform is down: run `make up` to start the platform."
        )
    selector = f"--selector=app.kubernetes.io/name={options.name}"
    path = "--output=jsonpath={.items[0].metadata.namespace}"
    namespace = local.kubectl("get", "pods", "--all-namespaces", selector, path, "--ignore-not-found").strip()
    if not namespace:
        names = ", ".join(process.name for process in local.processes.list())
        raise MissingRequirement(f"there is no log of {options.name}: use a platform workload or one of {names}.")
    follow = ["--follow"] if options.follow else []
    kubectl = [str(local.control_plane.binary_paths["kubectl"]), f"--kubeconfig={local.control_plane.kubeconfig}"]
    command = [*kubectl, "logs", f"--namespace={namespace}", selector, "--prefix", "--tail=200", *follow]
    return subprocess.run(command, check=False).returncode


def _prepare(_: argparse.Namespace) -> None:
    binaries.resolve([*CONTROL_PLANE_BINARIES, "kwok"])
    node.prepare()
    print("All requirements are installed. Run `make up` to start the platform.")


def _control_plane(options: argparse.Namespace) -> None:
    with temporary_control_plane(options.nodes, options.gpus) as plane:
        _wait_until_interrupted(plane.kubeconfig)


def _node(options: argparse.Namespace) -> None:
    with node.temporary_node(options.gpus) as local:
        _wait_until_interrupted(local.control_plane.kubeconfig)


def _wait_until_interrupted(kubeconfig: object) -> None:
    print(f"\nRunning until interrupted:\n\n  export KUBECONFIG={kubeconfig}\n", flush=True)
    signal.pause()
