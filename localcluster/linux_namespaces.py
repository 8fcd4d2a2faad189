"""Creates the Linux namespaces of a node: PID, mount, network and IPC namespaces of its own.

The supervisor is process 1 of the PID namespace. When it exits for any reason, the kernel kills every other process of
the node and removes its mounts, interfaces, addresses, routes and firewall rules. Only the cgroups remain;
`remove_cgroups` deletes them.

The `main` function of this module runs first inside the namespaces. It sets up the mounts and then executes the
supervisor.
"""

import hashlib
import ipaddress
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from localcluster.errors import MissingRequirement
from localcluster.supervisor_client import SupervisorClient

NETWORK_INDEXES = range(64)

# The kubelet requires these values and would set them for the whole machine. Inside the namespaces, files with these
# values are mounted over the kernel's files instead.
KERNEL_SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


@dataclass(frozen=True)
class NodeNetwork:
    """The address ranges of one node. Each node has a different index, so that several nodes can run side by side."""

    index: int

    @property
    def interface(self) -> str:
        return f"lc-{self.index}"

    @property
    def link_cidr(self) -> str:
        return f"10.244.{self.index}.0/30"

    @property
    def host_ip(self) -> str:
        return f"10.244.{self.index}.1"

    @property
    def node_ip(self) -> str:
        return f"10.244.{self.index}.2"

    @property
    def pod_cidr(self) -> str:
        return f"10.245.{self.index}.0/24"

    @property
    def service_cidr(self) -> str:
        return f"10.246.{self.index * 4}.0/22"


def find_free_network() -> NodeNetwork:
    """Return a network that overlaps with no route of this machine."""
    used = _used_networks()
    for index in NETWORK_INDEXES:
        network = NodeNetwork(index)
        ranges = [ipaddress.ip_network(cidr) for cidr in (network.link_cidr, network.pod_cidr, network.service_cidr)]
        if not any(candidate.overlaps(other) for candidate in ranges for other in used):
            return network
    raise MissingRequirement(
        "every network from 10.244.0.0 to 10.246.255.255 is in use on this machine: stop a local cluster."
    )


def _used_networks() -> list[ipaddress.IPv4Network]:
    routes = subprocess.run(["ip", "-json", "-4", "route"], capture_output=True, text=True, check=True).stdout
    destinations = [route["dst"] for route in json.loads(routes or "[]")]
    return [ipaddress.IPv4Network(dst) for dst in destinations if dst != "default"]


@dataclass(frozen=True)
class NodeNamespaces:
    state_dir: Path
    network: NodeNetwork
    memory_gib: int

    @property
    def cgroup(self) -> str:
        return _cgroup_name(self.state_dir)

    def launch(self, processes: SupervisorClient, *, die_with_parent: bool, fds: Sequence[int] = ()) -> None:
        """Create the namespaces, start the supervisor in them, and connect their network to this machine."""
        self._write_mounted_files()
        # Each cgroup that remains from a previous run delays the kubelet by six seconds before it starts with its pods.
        # A real power loss leaves no cgroups.
        remove_cgroups(self.state_dir)
        self._make_cgroups()
        unshare = ["unshare", "--mount", "--net", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc", "--"]
        set_up_mounts = [sys.executable, "-P", "-m", "localcluster.linux_namespaces", str(self.state_dir), "--"]
        processes.launch([*unshare, *set_up_mounts], die_with_parent=die_with_parent, fds=fds)
        self._connect_network(processes.supervisor_pid())

    def run(self, processes: SupervisorClient, *command: str | Path) -> str:
        """Run a command inside the namespaces and return its stdout."""
        enter = ["nsenter", f"--target={processes.supervisor_pid()}", "--mount", "--net", "--pid", "--"]
        completed = subprocess.run([*enter, *map(str, command)], capture_output=True, text=True, check=False)
        if completed.returncode:
            raise RuntimeError(f"{' '.join(map(str, command))}: {completed.stderr.strip()}")
        return completed.stdout

    def _write_mounted_files(self) -> None:
        files = self.state_dir / "files"
        files.mkdir(parents=True, exist_ok=True)
        (self.state_dir / "kubelet").mkdir(exist_ok=True)
        (files / "meminfo").write_text(_meminfo(self.memory_gib))
        (files / "resolv.conf").write_text(
            f"nameserver {self.network.node_ip}\nsearch svc.cluster.local cluster.local\noptions ndots:5\n"
        )
        for name, value in KERNEL_SETTINGS.items():
            (files / name.replace("/", ".")).write_text(f"{value}\n")

    def _connect_network(self, pid: int) -> None:
        """Create a veth pair between this machine and the node, and routes to the node's Services and pods."""
        network = self.network
        host_commands = [
            f"link add {network.interface} type veth peer name eth0 netns {pid}",
            f"addr add {network.host_ip}/30 dev {network.interface}",
            f"link set {network.interface} up",
            f"route add {network.service_cidr} via {network.node_ip}",
            f"route add {network.pod_cidr} via {network.node_ip}",
        ]
        node_commands = [
            "link set lo up",
            f"addr add {network.node_ip}/30 dev eth0",
            "link set eth0 up",
            # The kernel drops a packet without a route before kube-proxy's rules can redirect it to a pod.
            f"route add {network.service_cidr} dev eth0",
        ]
        _ip(node_commands[:1], pid)
        _ip(host_commands[:1])
        _ip(node_commands[1:], pid)
        _ip(host_commands[1:])

    def _make_cgroups(self) -> None:
        for root in _cgroup_roots():
            (root / self.cgroup).mkdir(exist_ok=True)


def remove_cgroups(state_dir: Path) -> None:
    """Delete the cgroups of a node. The kernel keeps them after the node's last process has exited."""
    for root in _cgroup_roots():
        top = root / _cgroup_name(state_dir)
        if top.exists():
            _remove_cgroup(top)


def _cgroup_name(state_dir: Path) -> str:
    return f"localcluster-{hashlib.sha256(bytes(state_dir)).hexdigest()[:12]}"


def _meminfo(gib: int) -> str:
    """Return /proc/meminfo with a larger amount of memory than the machine has.

    The kubelet then advertises that amount, and pods with large memory requests can be scheduled.
    """
    lines = []
    for line in Path("/proc/meminfo").read_text().splitlines():
        name = line.partition(":")[0]
        is_replaced = name in ("MemTotal", "MemFree", "MemAvailable")
        lines.append(f"{name + ':':<16}{gib * 1024 * 1024:>8} kB" if is_replaced else line)
    return "\n".join(lines) + "\n"


def _ip(commands: Sequence[str], pid: int | None = None) -> None:
    enter = ["nsenter", f"--net=/proc/{pid}/ns/net", "--"] if pid else []
    batch = "\n".join(commands)
    completed = subprocess.run([*enter, "ip", "-batch", "-"], input=batch, capture_output=True, text=True, check=False)
    if completed.returncode:
        raise MissingRequirement(
            f"cannot create the node's network ({completed.stderr.strip()}): if the network of an earlier platform "
            "still exists, `make down` removes it."
        )


def _cgroup_roots() -> list[Path]:
    """Return the single hierarchy of cgroup v2, or the hierarchy of each controller of cgroup v1."""
    base = Path("/sys/fs/cgroup")
    if (base / "cgroup.procs").exists():
        return [base]
    return [folder for folder in base.iterdir() if (folder / "cgroup.procs").exists()]


def _remove_cgroup(folder: Path, timeout: float = 30) -> None:
    for child in folder.iterdir():
        if child.is_dir():
            _remove_cgroup(child, timeout)
    deadline = time.monotonic() + timeout
    while True:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:  # the kernel has not removed the last process from the cgroup yet
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def main() -> None:
    state_dir, command = Path(sys.argv[1]), sys.argv[3:]
    files = state_dir / "files"
    _mount("-t", "tmpfs", "-o", "mode=0755", "tmpfs", "/run")
    _mount("-t", "tmpfs", "-o", "mode=0755", "tmpfs", "/var/log")
    for folder in ("/var/lib/cni", "/var/lib/kubelet"):
        Path(folder).mkdir(parents=True, exist_ok=True)
    _mount("-t", "tmpfs", "-o", "mode=0755", "tmpfs", "/var/lib/cni")
    _mount("--bind", str(state_dir / "kubelet"), "/var/lib/kubelet")
    _mount_file(files / "resolv.conf", Path("/etc/resolv.conf").resolve())
    _mount_file(files / "meminfo", Path("/proc/meminfo"))
    for name in KERNEL_SETTINGS:
        if Path("/proc/sys", name).exists():
            _mount_file(files / name.replace("/", "."), Path("/proc/sys", name))
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    os.execvp(command[0], command)  # noqa: S606


def _mount_file(source: Path, target: Path) -> None:
    if not target.exists():  # for example a resolv.conf that was a link into /run
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    _mount("--bind", str(source), str(target))


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


if __name__ == "__main__":
    main()
