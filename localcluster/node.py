"""A node on which real pods run: containerd, kubelet, kube-proxy, DNS, volumes, and GPUs that are not there."""

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
from localcluster.errors import Unmet
from localcluster.linux_namespaces import Network, Sandbox, free_network, remove_cgroups
from localcluster.paths import LOCAL, discard, require_disk, scratch
from localcluster.progress import step
from localcluster.supervisor_client import Processes

NAME = "local"
PROGRAMS = ("coredns", "gpu-device-plugin", "kube-proxy", "kubelet")
CONTAINERD = "/run/containerd/containerd.sock"
MANIFESTS = Path(__file__).with_suffix(".yaml")


@dataclass(frozen=True)
class Node:
    """One machine of a cluster, and the control plane that runs on it."""

    state: Path
    network: Network
    gpus: int = 16
    memory_gib: int = 512
    durable: bool = False

    @cached_property
    def plane(self) -> ControlPlane:
        return ControlPlane(self.state, self.network.node, 6443, (2379, 2380), self.network.services, self.durable)

    @property
    def processes(self) -> Processes:
        return self.plane.processes

    @cached_property
    def sandbox(self) -> Sandbox:
        return Sandbox(self.state, self.network, self.memory_gib)

    @cached_property
    def programs(self) -> dict[str, Path]:
        return binaries.resolve(PROGRAMS)

    def start(self, *, owned: bool, fds: Sequence[int] = ()) -> None:
        """Start everything and return when the node is Ready with its GPUs."""
        archives = prepare()
        started = datetime.datetime.now(datetime.UTC)
        with step("Starting the control plane"):
            self.sandbox.launch(self.processes, owned=owned, fds=fds)
            self.start_containerd()
            self.plane.start()
        with step("Importing container images"):
            self.import_images(archives)
        with step("Starting the node"):
            self.apply(MANIFESTS)
            self.start_kubelet()
            self.start_gpus()
            self.start_kube_proxy()
            self.start_dns()
            self.plane.start_provisioner()
            self.processes.wait_for("kubelet", lambda: self.ready(since=started), 180)

    def start_containerd(self) -> None:
        config = self._write(
            "containerd.toml",
            f"""
version = 2
root = {json.dumps(str(self.state / "containerd"))}
state = "/run/containerd"
[grpc]
  address = "{CONTAINERD}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/{images.PAUSE.name}"
  # Without CAP_SYS_RESOURCE a process may not lower its OOM score below its parent's.
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = {json.dumps(str(self.state / "cni"))}
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
""",
        )
        self._write("cni/10-pods.conflist", json.dumps(self._pod_network()))
        self.processes.start("containerd", ["containerd", "--config", config])

    def import_images(self, archives: Sequence[images.Archive]) -> None:
        self.processes.wait_for("containerd", self._containerd_answers)
        done = self.state / "containerd" / "imported"
        known = done.read_text().split() if done.exists() else []
        for archive in archives:
            if archive.path.name not in known:
                self.sandbox.run(
                    self.processes,
                    "ctr",
                    f"--address={CONTAINERD}",
                    "--namespace=k8s.io",
                    "images",
                    "import",
                    archive.path,
                )
        done.write_text("\n".join(archive.path.name for archive in archives))

    def start_kubelet(self) -> None:
        user = f"system:node:{NAME}"
        serving = self.plane.authority.issue("kubelet", user, ["system:nodes"], [NAME, self.network.node])
        settings = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.network.node,
            "authentication": {
                "anonymous": {"enabled": False},
                "x509": {"clientCAFile": str(self.plane.authority.certificate)},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(serving.certificate),
            "tlsPrivateKeyFile": str(serving.key),
            "containerRuntimeEndpoint": f"unix://{CONTAINERD}",
            "clusterDNS": [self.network.node],
            "clusterDomain": "cluster.local",
            "resolvConf": str(self.state / "files" / "resolv.conf"),
            "podLogsDir": str(self.state / "pod-logs"),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.sandbox.cgroup}",
            "failCgroupV1": False,
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "protectKernelDefaults": True,
            "localStorageCapacityIsolation": False,
            "maxPods": 250,
            "serializeImagePulls": False,
            "registryPullQPS": 0,
            # The machine's disk may be full of other things, and the advertised memory is not there.
            "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
            "imageGCHighThresholdPercent": 100,
            # Quick to notice and to try again: people and tests wait for this node.
            "nodeStatusUpdateFrequency": "1s",
            "nodeLeaseDurationSeconds": 10,
            "syncFrequency": "5s",
            "kubeAPIQPS": 1000,
            "kubeAPIBurst": 2000,
            "crashLoopBackOff": {"maxContainerRestartPeriod": "5s"},
        }
        config = self._write("kubelet.yaml", yaml.safe_dump(settings))
        kubeconfig = self.plane.kubeconfig_for("kubelet", user, "system:nodes")
        flags = [f"--config={config}", f"--kubeconfig={kubeconfig}", f"--hostname-override={NAME}"]
        self.processes.start("kubelet", [self.programs["kubelet"], *flags, f"--node-ip={self.network.node}"])

    def start_gpus(self) -> None:
        self.processes.start("gpu-device-plugin", [self.programs["gpu-device-plugin"], f"--count={self.gpus}"])

    def start_kube_proxy(self) -> None:
        settings = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "hostnameOverride": NAME,
            "clusterCIDR": self.network.pods,
            "clientConnection": {"kubeconfig": str(self.plane.kubeconfig_for("kube-proxy", "system:kube-proxy"))},
            "nftables": {"minSyncPeriod": "10ms", "syncPeriod": "30s"},
            # Nothing of this machine's connection tracking is to be changed.
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        }
        config = self._write("kube-proxy.yaml", yaml.safe_dump(settings))
        self.processes.start("kube-proxy", [self.programs["kube-proxy"], f"--config={config}"])

    def start_dns(self) -> None:
        kubeconfig = self.plane.kubeconfig_for("coredns", "system:coredns")
        config = self._write(
            "Corefile",
            f"""
cluster.local:53 in-addr.arpa:53 {{
    bind {self.network.node}
    errors
    ready {self.network.node}:8181
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {kubeconfig} local
    }}
}}
# There is no world outside: say so at once instead of letting a resolver wait for it.
.:53 {{
    bind {self.network.node}
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
""",
        )
        self.processes.start("coredns", [self.programs["coredns"], "-conf", config])

    def ready(self, since: datetime.datetime) -> bool:
        """Whether the node takes pods and has its GPUs; what it said before it was last switched off does not count."""
        with self.plane.client() as client:
            try:
                lease = client.get(Lease, NAME, namespace="kube-node-lease")
                status = client.get(NodeResource, NAME).status
            except ApiError:
                return False
        if not (status and lease.spec and lease.spec.renewTime and lease.spec.renewTime > since):
            return False
        conditions = {condition.type: condition.status for condition in status.conditions or []}
        return conditions.get("Ready") == "True" and (status.allocatable or {}).get("nvidia.com/gpu") == str(self.gpus)

    def apply(self, path: Path) -> None:
        """Apply a manifest, or a folder with a kustomization."""
        how = "-k" if path.is_dir() else "-f"
        self.kubectl("apply", "--server-side", "--force-conflicts", how, str(path))

    def kubectl(self, *arguments: str) -> str:
        return self.plane.kubectl(*arguments)

    def stop(self) -> None:
        """Cut the power: nothing of the node is left but its files."""
        self.processes.shutdown()
        remove_cgroups(self.state)

    def _pod_network(self) -> dict[str, Any]:
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
                        "ranges": [[{"subnet": self.network.pods}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                },
                {"type": "portmap", "capabilities": {"portMappings": True}},
            ],
        }

    def _containerd_answers(self) -> bool:
        try:
            self.sandbox.run(self.processes, "ctr", f"--address={CONTAINERD}", "version")
        except RuntimeError:
            return False
        return True

    def _write(self, name: str, text: str) -> Path:
        path = self.state / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


def prepare() -> list[images.Archive]:
    """Whatever a node needs of this machine, made or installed where it is missing."""
    if os.geteuid() != 0:
        raise Unmet("a node needs root for its namespaces and mounts: run this with sudo.")
    require_disk(LOCAL, 3, "a node")
    apt_packages.require()
    binaries.resolve(PROGRAMS)
    return images.archives()


@contextmanager
def node(gpus: int = 16) -> Iterator[Node]:
    """A node of one's own beside any other, gone without a trace at the end."""
    prepare()
    with scratch("nodes", discard_node) as state:
        local = Node(state, free_network(), gpus)
        try:
            local.start(owned=True)
            yield local
        finally:
            local.stop()


def discard_node(state: Path) -> None:
    remove_cgroups(state)
    discard(state)
