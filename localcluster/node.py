"""Runs a Kubernetes node with real pods: containerd, kubelet, kube-proxy, CoreDNS, volumes, and simulated GPUs."""

import datetime
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from lightkube import ApiError
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import Node as NodeResource

from localcluster import apt_packages, binaries, images
from localcluster.control_plane import ControlPlane
from localcluster.errors import MissingRequirement
from localcluster.linux_namespaces import NodeNamespaces, NodeNetwork, find_free_network, remove_cgroups
from localcluster.paths import LOCAL_STATE_DIR, remove_tree, require_free_disk, scratch_dir
from localcluster.progress import progress_step
from localcluster.supervisor_client import SupervisorClient

NODE_NAME = "local"
NODE_BINARIES = ("coredns", "gpu-device-plugin", "kube-proxy", "kubelet")
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
NODE_MANIFESTS = Path(__file__).with_suffix(".yaml")


@dataclass(frozen=True)
class Node:
    """The only machine of a cluster, and the control plane that runs on it."""

    state_dir: Path
    network: NodeNetwork
    gpus: int = 16
    memory_gib: int = 512
    durable: bool = False

    @cached_property
    def control_plane(self) -> ControlPlane:
        return ControlPlane(
            self.state_dir, self.network.node_ip, 6443, (2379, 2380), self.network.service_cidr, self.durable
        )

    @property
    def processes(self) -> SupervisorClient:
        return self.control_plane.processes

    @cached_property
    def namespaces(self) -> NodeNamespaces:
        return NodeNamespaces(self.state_dir, self.network, self.memory_gib)

    @cached_property
    def binary_paths(self) -> dict[str, Path]:
        return binaries.resolve(NODE_BINARIES)

    def start(self, *, die_with_parent: bool, fds: Sequence[int] = ()) -> None:
        """Start all processes and wait until the node is Ready and has registered its GPUs."""
        archives = prepare()
        started_at = datetime.datetime.now(datetime.UTC)
        with progress_step("Starting the control plane"):
            self.namespaces.launch(self.processes, die_with_parent=die_with_parent, fds=fds)
            self.start_containerd()
            self.control_plane.start()
        with progress_step("Importing container images"):
            self.import_images(archives)
        with progress_step("Starting the node"):
            self.apply(NODE_MANIFESTS)
            self.start_kubelet()
            self.start_gpu_device_plugin()
            self.start_kube_proxy()
            self.start_coredns()
            self.control_plane.start_provisioner()
            self.processes.wait_for("kubelet", lambda: self.is_ready(since=started_at), 180)

    def start_containerd(self) -> None:
        config = self._write(
            "containerd.toml",
            f"""
version = 2
root = {json.dumps(str(self.state_dir / "containerd"))}
state = "/run/containerd"
[grpc]
  address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/{images.PAUSE_IMAGE.name}"
  # Without CAP_SYS_RESOURCE a process may not lower its OOM score below its parent's.
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = {json.dumps(str(self.state_dir / "cni"))}
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
""",
        )
        self._write("cni/10-pods.conflist", json.dumps(self._cni_config()))
        self.processes.start("containerd", ["containerd", "--config", config])

    def import_images(self, archives: Sequence[images.ImageArchive]) -> None:
        self.processes.wait_for("containerd", self._is_containerd_ready)
        imported_file = self.state_dir / "containerd" / "imported"
        imported = imported_file.read_text().split() if imported_file.exists() else []
        for archive in archives:
            if archive.path.name not in imported:
                self.namespaces.run(
                    self.processes,
                    "ctr",
                    f"--address={CONTAINERD_SOCKET}",
                    "--namespace=k8s.io",
                    "images",
                    "import",
                    archive.path,
                )
        imported_file.write_text("\n".join(archive.path.name for archive in archives))

    def start_kubelet(self) -> None:
        user = f"system:node:{NODE_NAME}"
        serving = self.control_plane.authority.issue(
            "kubelet", user, ["system:nodes"], [NODE_NAME, self.network.node_ip]
        )
        settings = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.network.node_ip,
            "authentication": {
                "anonymous": {"enabled": False},
                "x509": {"clientCAFile": str(self.control_plane.authority.certificate)},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(serving.certificate),
            "tlsPrivateKeyFile": str(serving.key),
            "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
            "clusterDNS": [self.network.node_ip],
            "clusterDomain": "cluster.local",
            "resolvConf": str(self.state_dir / "files" / "resolv.conf"),
            "podLogsDir": str(self.state_dir / "pod-logs"),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.namespaces.cgroup}",
            "failCgroupV1": False,
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "protectKernelDefaults": True,
            "localStorageCapacityIsolation": True,
            "maxPods": 250,
            "serializeImagePulls": False,
            "registryPullQPS": 0,
            # No evictions: other data may fill the disk of this machine, and the advertised memory does not exist.
            "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
            "imageGCHighThresholdPercent": 100,
            # Short intervals for status updates and restarts, because users and tests wait for this node.
            "nodeStatusUpdateFrequency": "1s",
            "nodeLeaseDurationSeconds": 10,
            "syncFrequency": "5s",
            "kubeAPIQPS": 1000,
            "kubeAPIBurst": 2000,
            "crashLoopBackOff": {"maxContainerRestartPeriod": "5s"},
        }
        config = self._write("kubelet.yaml", yaml.safe_dump(settings))
        kubeconfig = self.control_plane.kubeconfig_for("kubelet", user, "system:nodes")
        flags = [f"--config={config}", f"--kubeconfig={kubeconfig}", f"--hostname-override={NODE_NAME}"]
        self.processes.start("kubelet", [self.binary_paths["kubelet"], *flags, f"--node-ip={self.network.node_ip}"])

    def start_gpu_device_plugin(self) -> None:
        self.processes.start("gpu-device-plugin", [self.binary_paths["gpu-device-plugin"], f"--count={self.gpus}"])

    def start_kube_proxy(self) -> None:
        settings = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "hostnameOverride": NODE_NAME,
            "clusterCIDR": self.network.pod_cidr,
            "clientConnection": {
                "kubeconfig": str(self.control_plane.kubeconfig_for("kube-proxy", "system:kube-proxy"))
            },
            "nftables": {"minSyncPeriod": "1ms", "syncPeriod": "30s"},
            # Zero leaves the connection tracking settings of this machine unchanged.
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        }
        config = self._write("kube-proxy.yaml", yaml.safe_dump(settings))
        self.processes.start("kube-proxy", [self.binary_paths["kube-proxy"], f"--config={config}"])

    def start_coredns(self) -> None:
        kubeconfig = self.control_plane.kubeconfig_for("coredns", "system:coredns")
        config = self._write(
            "Corefile",
            f"""
cluster.local:53 in-addr.arpa:53 {{
    bind {self.network.node_ip}
    errors
    ready {self.network.node_ip}:8181
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {kubeconfig} local
    }}
}}
# External names do not resolve. The immediate NXDOMAIN saves resolvers from waiting for a timeout.
.:53 {{
    bind {self.network.node_ip}
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
""",
        )
        self.processes.start("coredns", [self.binary_paths["coredns"], "-conf", config])

    def is_ready(self, since: datetime.datetime) -> bool:
        """Whether the node is Ready and has all its GPUs.

        The node lease must have been renewed after `since`. An older status is from before the last shutdown.
        """
        with self.control_plane.client() as client:
            try:
                lease = client.get(Lease, NODE_NAME, namespace="kube-node-lease")
                status = client.get(NodeResource, NODE_NAME).status
            except ApiError:
                return False
        if not (status and lease.spec and lease.spec.renewTime and lease.spec.renewTime > since):
            return False
        conditions = {condition.type: condition.status for condition in status.conditions or []}
        return conditions.get("Ready") == "True" and (status.allocatable or {}).get("nvidia.com/gpu") == str(self.gpus)

    def apply(self, path: Path) -> None:
        """Apply a manifest file, or a folder with a kustomization."""
        flag = "-k" if path.is_dir() else "-f"
        self.kubectl("apply", "--server-side", "--force-conflicts", flag, str(path))

    def kubectl(self, *arguments: str) -> str:
        return self.control_plane.kubectl(*arguments)

    def stop(self) -> None:
        """Kill all processes of the node, as a power loss does. Only the node's files remain."""
        self.processes.shutdown()
        remove_cgroups(self.state_dir)

    def _cni_config(self) -> dict[str, Any]:
        return {
            "cniVersion": "1.0.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "ptp",
                    "ipMasq": True,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": "/run/cni",
                        "ranges": [[{"subnet": self.network.pod_cidr}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                },
                {"type": "portmap", "capabilities": {"portMappings": True}},
            ],
        }

    def _is_containerd_ready(self) -> bool:
        try:
            self.namespaces.run(self.processes, "ctr", f"--address={CONTAINERD_SOCKET}", "version")
        except RuntimeError:
            return False
        return True

    def _write(self, name: str, text: str) -> Path:
        path = self.state_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


def prepare() -> list[images.ImageArchive]:
    """Install or build all requirements of a node that are missing, and return the image archives."""
    if os.geteuid() != 0:
        raise MissingRequirement("a node needs root for its namespaces and mounts: run the command with sudo.")
    require_free_disk(LOCAL_STATE_DIR, 3, "a node")
    apt_packages.install_missing()
    binaries.resolve(NODE_BINARIES)
    return images.image_archives()


@contextmanager
def temporary_node(gpus: int = 16) -> Iterator[Node]:
    """Run a node beside other nodes. Its processes, files and cgroups are removed when the context ends."""
    prepare()
    with scratch_dir("nodes", remove_node_state) as state_dir:
        node = Node(state_dir, find_free_network(), gpus)
        try:
            node.start(die_with_parent=True)
            yield node
        finally:
            node.stop()


def remove_node_state(state_dir: Path) -> None:
    remove_cgroups(state_dir)
    remove_tree(state_dir)
