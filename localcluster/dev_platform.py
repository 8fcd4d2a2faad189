"""The development platform: one node that stays up in the background, with everything deployed into it."""

import fcntl
import functools
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from localcluster import images
from localcluster.errors import Unmet
from localcluster.linux_namespaces import Network, free_network
from localcluster.node import Node, discard_node, prepare
from localcluster.paths import LOCAL, PROJECT
from localcluster.progress import step

STATE = LOCAL / "platform"
DEPLOYMENTS = (PROJECT / "config" / "nats", PROJECT / "config" / "overlays" / "local")
WORKLOADS = (
    ("messaging", "statefulset/nats"),
    ("runtime-system", "deployment/controller-manager"),
    ("runtime-system", "deployment/runtime-api"),
    ("runtime-system", "deployment/result-store"),
    ("runtime-system", "deployment/activator"),
)

_HEALTH = b"GET /api/v1/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True)
class Route:
    """A Service of the cluster at a port of this machine."""

    title: str
    port: int
    service: str
    variable: str
    greeting: bytes
    """How its answer begins."""
    question: bytes = b""
    """What it is asked, where the Service does not speak first."""


def routes(api_port: int, nats_port: int) -> tuple[Route, ...]:
    return (
        Route("API", api_port, "runtime-api.runtime-system:8080", "API_PORT", b"HTTP/1.1 200", _HEALTH),
        Route("NATS", nats_port, "nats.messaging:4222", "NATS_PORT", b"INFO"),
    )


def up(forwards: Sequence[Route]) -> Node:
    """Bring the platform up, or what of it is missing."""
    with _exclusively():
        node = _platform()
        if node is None or not node.processes.alive():
            node = _start(forwards)
        _deploy(node, forwards)
        _link(node)
        return node


def _start(forwards: Sequence[Route]) -> Node:
    with ExitStack() as sockets:
        # Before anything else: a taken port should not be found out about after minutes of building.
        listeners = [sockets.enter_context(_listen(route)) for route in forwards]
        prepare()
        descriptors = [listener.fileno() for listener in listeners]
        node = Node(STATE, _network(), durable=True)
        try:
            node.start(owned=False, fds=descriptors)
            _start_forwarder(node, dict(zip(descriptors, forwards, strict=True)))
        except BaseException:
            node.stop()
            raise
    return node


def _start_forwarder(node: Node, routes: Mapping[int, Route]) -> None:
    targets = [f"{descriptor}={route.service}" for descriptor, route in routes.items()]
    command = [sys.executable, "-P", "-m", "localcluster.forwarder", *targets]
    node.processes.start("forwarder", command, fds=list(routes))


def _listen(route: Route) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", route.port))
    except OSError:
        listener.close()
        raise Unmet(
            f"port {route.port} of 127.0.0.1, where the {route.title} is to be, is taken: stop what listens there, "
            f"or choose another with `make up {route.variable}={route.port + 10000}`."
        ) from None
    listener.listen(128)
    return listener


def _network() -> Network:
    """The network of the last time, since the cluster's Services have addresses in it."""
    recorded = STATE / "network"
    if not recorded.exists():
        STATE.mkdir(parents=True, exist_ok=True)
        recorded.write_text(str(free_network().index))
    return Network(int(recorded.read_text()))


def _deploy(node: Node, forwards: Sequence[Route]) -> None:
    node.import_images(images.archives())
    with step("Deploying the platform"):
        install(node, *DEPLOYMENTS)
        for namespace, workload in WORKLOADS:
            node.kubectl("rollout", "status", workload, f"--namespace={namespace}", "--timeout=240s")
        for route in forwards:
            node.processes.wait_for("forwarder", functools.partial(_answers, route), 120)


def install(node: Node, *folders: Path) -> None:
    """Apply kustomizations, so that Deployments restart when the image they run was made anew under its old name."""
    image = images.product().path.name
    for folder in folders:
        manifests = [found for found in yaml.safe_load_all(node.kubectl("kustomize", str(folder))) if found]
        for manifest in manifests:
            if manifest["kind"] == "Deployment":
                metadata = manifest["spec"]["template"]["metadata"]
                metadata.setdefault("annotations", {})["localcluster/image"] = image
        rendered = node.state / f"{folder.name}.yaml"
        rendered.write_text(yaml.safe_dump_all(manifests))
        node.apply(rendered)


def _answers(route: Route) -> bool:
    """Whether the Service itself is heard through its port: right after a start, what Kubernetes says is old news."""
    try:
        with socket.create_connection(("127.0.0.1", route.port), timeout=5) as connection:
            connection.sendall(route.question)
            return connection.recv(64).startswith(route.greeting)
    except OSError:
        return False


def _link(node: Node) -> None:
    """Put kubectl and the kubeconfig where everyone expects them."""
    links = {LOCAL / "kubeconfig": node.plane.kubeconfig, LOCAL / "bin" / "kubectl": node.plane.programs["kubectl"]}
    for link, target in links.items():
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)


def down() -> None:
    """End every process; the data stays."""
    with _exclusively():
        if node := _platform():
            node.stop()


def wipe() -> None:
    """End every process and delete the data."""
    down()
    discard_node(STATE)
    for link in (LOCAL / "kubeconfig", LOCAL / "bin" / "kubectl"):
        link.unlink(missing_ok=True)


def running() -> Node | None:
    node = _platform()
    return node if node and node.processes.alive() else None


def _platform() -> Node | None:
    return Node(STATE, _network(), durable=True) if (STATE / "network").exists() else None


@contextmanager
def _exclusively() -> Iterator[None]:
    """One command at a time: two that start the same platform would start it twice."""
    LOCAL.mkdir(parents=True, exist_ok=True)
    with (LOCAL / "platform.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unmet("another command is starting or stopping the platform: wait for it to end.") from None
        yield
