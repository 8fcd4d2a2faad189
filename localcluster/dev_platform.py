"""Starts, deploys and stops the development platform: a node in the background that runs the product and NATS."""

import fcntl
import functools
import secrets
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from localcluster import images
from localcluster.errors import MissingRequirement
from localcluster.linux_namespaces import NodeNetwork, find_free_network
from localcluster.node import Node, prepare, remove_node_state
from localcluster.paths import LOCAL_STATE_DIR, PROJECT_ROOT
from localcluster.progress import progress_step

STATE_DIR = LOCAL_STATE_DIR / "platform"
SYSTEM_NAMESPACE = "runtime-system"
KUSTOMIZATIONS = (PROJECT_ROOT / "config" / "nats", PROJECT_ROOT / "config" / "overlays" / "local")
WORKLOADS = (
    ("messaging", "statefulset/nats"),
    ("runtime-system", "deployment/controller-manager"),
    ("runtime-system", "deployment/runtime-api"),
    ("runtime-system", "deployment/result-store"),
    ("runtime-system", "deployment/activator"),
)

_HEALTH_REQUEST = b"GET /api/v1/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True)
class PortForward:
    """A Service of the cluster that is reachable at a port of 127.0.0.1."""

    title: str
    port: int
    service: str
    make_variable: str
    expected_prefix: bytes
    """The first bytes of a healthy response."""
    probe_request: bytes = b""
    """The request of the probe. It is empty if the server sends the first bytes, as NATS does."""


def port_forwards(api_port: int, nats_port: int) -> tuple[PortForward, ...]:
    return (
        PortForward("API", api_port, "runtime-api.runtime-system:8080", "API_PORT", b"HTTP/1.1 200", _HEALTH_REQUEST),
        PortForward("NATS", nats_port, "nats.messaging:4222", "NATS_PORT", b"INFO"),
    )


def up(forwards: Sequence[PortForward]) -> Node:
    """Start the platform. If it runs already, deploy again and start only what is missing."""
    with _platform_lock():
        node = _existing_node()
        if node is None or not node.processes.is_alive():
            node = _start(forwards)
        _deploy(node, forwards)
        _link_files(node)
        return node


def _start(forwards: Sequence[PortForward]) -> Node:
    with ExitStack() as sockets:
        # Bind the ports first, so that a port in use is reported before a build of several minutes.
        listeners = [sockets.enter_context(_listen(forward)) for forward in forwards]
        prepare()
        descriptors = [listener.fileno() for listener in listeners]
        node = Node(STATE_DIR, _recorded_network(), durable=True)
        try:
            node.start(die_with_parent=False, fds=descriptors)
            _start_forwarder(node, dict(zip(descriptors, forwards, strict=True)))
        except BaseException:
            node.stop()
            raise
    return node


def _start_forwarder(node: Node, forwards: Mapping[int, PortForward]) -> None:
    targets = [f"{descriptor}={forward.service}" for descriptor, forward in forwards.items()]
    command = [sys.executable, "-P", "-m", "localcluster.forwarder", *targets]
    node.processes.start("forwarder", command, fds=list(forwards))


def _listen(forward: PortForward) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", forward.port))
    except OSError:
        listener.close()
        raise MissingRequirement(
            f"port {forward.port} of 127.0.0.1, the port of the {forward.title}, is in use: stop the process that "
            f"listens there, or choose another port with `make up {forward.make_variable}={forward.port + 10000}`."
        ) from None
    listener.listen(128)
    return listener


def _recorded_network() -> NodeNetwork:
    """Return the network of the previous start, because the stored Services have addresses in it."""
    index_file = STATE_DIR / "network"
    if not index_file.exists():
        STATE_DIR.mkdir(parents=True, exist_ok=True)
        index_file.write_text(str(find_free_network().index))
    return NodeNetwork(int(index_file.read_text()))


def _deploy(node: Node, forwards: Sequence[PortForward]) -> None:
    node.import_images(images.image_archives())
    with progress_step("Deploying the platform"):
        apply_kustomizations(node, *KUSTOMIZATIONS)
        for namespace, workload in WORKLOADS:
            node.kubectl("rollout", "status", workload, f"--namespace={namespace}", "--timeout=240s")
        for forward in forwards:
            node.processes.wait_for("forwarder", functools.partial(_is_reachable, forward), 120)


def apply_kustomizations(node: Node, *folders: Path) -> None:
    """Apply kustomizations. Deployments restart if the product image was rebuilt under the same name."""
    image = images.product_archive().path.name
    _apply_ticket_keys(node)
    for folder in folders:
        manifests = [manifest for manifest in yaml.safe_load_all(node.kubectl("kustomize", str(folder))) if manifest]
        for manifest in manifests:
            if manifest["kind"] == "Deployment":
                metadata = manifest["spec"]["template"]["metadata"]
                metadata.setdefault("annotations", {})["localcluster/image"] = image
        rendered = node.state_dir / f"{folder.name}.yaml"
        rendered.write_text(yaml.safe_dump_all(manifests))
        node.apply(rendered)


def _apply_ticket_keys(node: Node) -> None:
    """Create the Secret with the key of invocation tickets. Every later deployment has the same key."""
    key_file = ticket_key_file(node)
    if not key_file.exists():
        key_file.touch(mode=0o600)
        key_file.write_text(f"{secrets.token_hex(32)}\n")
    metadata = {"name": "ticket-keys", "namespace": SYSTEM_NAMESPACE}
    manifests = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM_NAMESPACE}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"keys": key_file.read_text()}},
    ]
    rendered = node.state_dir / "ticket-keys.yaml"
    rendered.touch(mode=0o600)
    rendered.write_text(yaml.safe_dump_all(manifests))
    node.apply(rendered)


def ticket_key_file(node: Node) -> Path:
    return node.state_dir / "ticket-keys"


def _is_reachable(forward: PortForward) -> bool:
    """Probe the Service through its local port.

    The object status is not sufficient: right after a start, Kubernetes still shows the status of the previous run.
    """
    try:
        with socket.create_connection(("127.0.0.1", forward.port), timeout=5) as connection:
            connection.sendall(forward.probe_request)
            return connection.recv(64).startswith(forward.expected_prefix)
    except OSError:
        return False


def _link_files(node: Node) -> None:
    """Link kubectl, the kubeconfig and the ticket keys to their documented paths below `.local`."""
    links = {
        LOCAL_STATE_DIR / "kubeconfig": node.control_plane.kubeconfig,
        LOCAL_STATE_DIR / "ticket-keys": ticket_key_file(node),
        LOCAL_STATE_DIR / "bin" / "kubectl": node.control_plane.binary_paths["kubectl"],
    }
    for link, target in links.items():
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)


def down() -> None:
    """Stop every process and keep the data."""
    with _platform_lock():
        if node := _existing_node():
            node.stop()


def wipe() -> None:
    """Stop every process and delete the data."""
    down()
    remove_node_state(STATE_DIR)
    links = ("kubeconfig", "ticket-keys", "bin/kubectl")
    for link in (LOCAL_STATE_DIR / each for each in links):
        link.unlink(missing_ok=True)


def running_node() -> Node | None:
    node = _existing_node()
    return node if node and node.processes.is_alive() else None


def _existing_node() -> Node | None:
    return Node(STATE_DIR, _recorded_network(), durable=True) if (STATE_DIR / "network").exists() else None


@contextmanager
def _platform_lock() -> Iterator[None]:
    """Allow one command at a time. Two concurrent commands would start the same platform twice."""
    LOCAL_STATE_DIR.mkdir(parents=True, exist_ok=True)
    with (LOCAL_STATE_DIR / "platform.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MissingRequirement(
                "another command is starting or stopping the platform: wait until it has finished."
            ) from None
        yield
