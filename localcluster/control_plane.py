"""Runs a Kubernetes control plane: etcd, API server, controller manager, scheduler, and kwok for simulated nodes.

A `ControlPlane` describes the state folder and the address of a control plane; its method `start` starts the processes.
Both cluster types use it. A control plane without a node listens on a free port of the loopback interface. The control
plane of a node runs in the node's namespaces and listens on the node's address.
"""

import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import yaml
from lightkube import Client, KubeConfig

from localcluster import binaries, simulated_nodes
from localcluster.free_ports import free_port
from localcluster.paths import LOCAL_STATE_DIR, require_free_disk, scratch_dir
from localcluster.pki import CertificateAuthority
from localcluster.supervisor_client import ProcessFailed, SupervisorClient

CONTROL_PLANE_BINARIES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
GO_GC_ENV = {"GOGC": "400"}
"""Fewer garbage collections, more memory: by default Go's garbage collector uses a sixth of the CPU time of an API
server of this size."""


@dataclass(frozen=True)
class ControlPlane:
    state_dir: Path
    address: str
    port: int
    etcd_ports: tuple[int, int]
    """The ports of etcd for clients and for peers. There is one etcd, so no peer connects."""
    service_cidr: str
    durable: bool = False
    """Whether etcd calls fsync, so that its data survives a power loss. Tests run faster without fsync."""
    apiserver_flags: Mapping[str, object] = field(default_factory=dict)
    """Additional flags of the API server, for example of an audit log. The value None removes a default flag."""

    @property
    def url(self) -> str:
        return f"https://{self.address}:{self.port}"

    @property
    def kubeconfig(self) -> Path:
        return self.state_dir / "kubeconfig"

    @cached_property
    def authority(self) -> CertificateAuthority:
        return CertificateAuthority(self.state_dir / "pki")

    @cached_property
    def processes(self) -> SupervisorClient:
        return SupervisorClient(self.state_dir)

    @cached_property
    def binary_paths(self) -> dict[str, Path]:
        return binaries.resolve(CONTROL_PLANE_BINARIES)

    def client(self, namespace: str = "default") -> Client:
        """Return a client with administrator rights."""
        return Client(config=KubeConfig.from_file(self.kubeconfig), namespace=namespace)

    def kubeconfig_for(self, name: str, user: str, *groups: str) -> Path:
        """Write a kubeconfig for the user with these groups, and return its path. The certificate is issued once."""
        path = self.state_dir / "pki" / f"{name}.kubeconfig"
        return self.authority.write_kubeconfig(path, self.url, self.authority.issue(name, user, groups))

    def kubectl(self, *arguments: str) -> str:
        """Run kubectl with administrator rights and return its stdout."""
        command = [str(self.binary_paths["kubectl"]), f"--kubeconfig={self.kubeconfig}", *arguments]
        completed = subprocess.run(command, capture_output=True, text=True, check=False)
        if completed.returncode:
            raise ProcessFailed(f"kubectl {' '.join(arguments)}: {completed.stderr.strip()}")
        return completed.stdout

    def start(self) -> None:
        """Start all processes. The API server is ready, with its built-in objects, before the other processes start."""
        self.authority.write_kubeconfig(
            self.kubeconfig, self.url, self.authority.issue("admin", "admin", ["system:masters"])
        )
        self.start_etcd()
        self.start_apiserver()
        self.wait_ready()
        self.start_controller_manager()
        self.start_scheduler()

    def start_etcd(self) -> None:
        data = self.state_dir / "etcd"
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        client, peer = (f"http://{self.address}:{port}" for port in self.etcd_ports)
        flags = {
            "name": "local",
            "data-dir": data,
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"local={peer}",
            "unsafe-no-fsync": not self.durable,
            "quota-backend-bytes": 8 * 1024**3,
            "auto-compaction-mode": "periodic",
            "auto-compaction-retention": "10m",
            "log-level": "warn",
        }
        self._start_binary("etcd", flags)

    def start_apiserver(self) -> None:
        hosts = [self.address, "127.0.0.1", "localhost", _first_host_ip(self.service_cidr)]
        hosts += ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
        serving = self.authority.issue("apiserver", "kube-apiserver", ["system:masters"], hosts)
        service_accounts = self.authority.signing_key("service-accounts")
        flags = {
            "etcd-servers": f"http://{self.address}:{self.etcd_ports[0]}",
            "bind-address": self.address,
            "advertise-address": self.address,
            "secure-port": self.port,
            "cert-dir": self.state_dir / "pki",
            "tls-cert-file": serving.certificate,
            "tls-private-key-file": serving.key,
            "client-ca-file": self.authority.certificate,
            "kubelet-certificate-authority": self.authority.certificate,
            "kubelet-client-certificate": serving.certificate,
            "kubelet-client-key": serving.key,
            # The API server's DNS resolver does not know the node name.
            "kubelet-preferred-address-types": "InternalIP",
            "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
            "service-account-key-file": service_accounts,
            "service-account-signing-key-file": service_accounts,
            "service-cluster-ip-range": self.service_cidr,
            "authorization-mode": "Node,RBAC",
            "anonymous-auth": "false",
            "enable-admission-plugins": "NodeRestriction,PodSecurity",
            "allow-privileged": "true",
            # Pods of a lost node are evicted after a few seconds. A shorter time would also evict pods of a node that
            # is only slow because the machine is busy.
            "default-not-ready-toleration-seconds": 5,
            "default-unreachable-toleration-seconds": 5,
            # The endpoints of the `kubernetes` Service must not contain a loopback address.
            "endpoint-reconciler-type": "none" if self.address.startswith("127.") else "lease",
        }
        self._start_binary("kube-apiserver", flags | dict(self.apiserver_flags))

    def start_controller_manager(self) -> None:
        flags = {
            "kubeconfig": self.kubeconfig_for("controller-manager", "system:kube-controller-manager"),
            "service-account-private-key-file": self.authority.signing_key("service-accounts"),
            "root-ca-file": self.authority.certificate,
            "use-service-account-credentials": "true",
            "leader-elect": "false",
            "secure-port": 0,
            "kube-api-qps": 1000,
            "kube-api-burst": 2000,
            "node-monitor-period": "500ms",
            # A restarted kwok waits up to 20 s until its old node leases expire. If the node controller marked a node
            # as lost during that time, it would mark the pods of the node as not ready, and kwok does not mark a
            # simulated pod as ready again.
            "node-monitor-grace-period": "120s",
            "pvclaimbinder-sync-period": "5s",
            "concurrent-deployment-syncs": 20,
            "concurrent-replicaset-syncs": 20,
            "concurrent-service-endpoint-syncs": 10,
            "concurrent-endpoint-syncs": 10,
            "concurrent-gc-syncs": 40,
            "concurrent-namespace-syncs": 20,
            "concurrent-statefulset-syncs": 10,
        }
        self._start_binary("kube-controller-manager", flags)

    def start_scheduler(self) -> None:
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {
                "kubeconfig": str(self.kubeconfig_for("scheduler", "system:kube-scheduler")),
                "qps": 1000,
                "burst": 2000,
            },
            "leaderElection": {"leaderElect": False},
            "podInitialBackoffSeconds": 1,
            "podMaxBackoffSeconds": 1,
        }
        path = self.state_dir / "scheduler.yaml"
        path.write_text(yaml.safe_dump(config))
        self._start_binary("kube-scheduler", {"config": path, "secure-port": 0})

    def start_provisioner(self) -> None:
        """Start the provisioner of the storage class in `node.yaml`. Apply `node.yaml` first."""
        volumes = self.state_dir / "volumes"
        volumes.mkdir(exist_ok=True)
        kubeconfig = self.kubeconfig_for("provisioner", "system:provisioner")
        options = [f"--kubeconfig={kubeconfig}", f"--volumes={volumes}"]
        self.processes.start("provisioner", [sys.executable, "-P", "-m", "localcluster.hostpath_provisioner", *options])

    def wait_ready(self, timeout: float = 180) -> None:
        self.processes.wait_for("kube-apiserver", self.is_ready, timeout)

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=10, context=self._ssl_context) as response:  # noqa: S310
                return bool(response.status == 200)
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except OSError:
            return False

    @cached_property
    def _ssl_context(self) -> ssl.SSLContext:
        admin = self.authority.issue("admin", "admin", ["system:masters"])
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        context.load_cert_chain(admin.certificate, admin.key)
        return context

    def _start_binary(self, name: str, flags: Mapping[str, object]) -> None:
        arguments = [f"--{key}={_flag_value(value)}" for key, value in flags.items() if value is not None]
        self.processes.start(name, [self.binary_paths[name], *arguments], env=GO_GC_ENV)


@contextmanager
def temporary_control_plane(
    nodes: int = 4, gpus_per_node: int = 8, apiserver_flags: Mapping[str, object] | None = None
) -> Iterator[ControlPlane]:
    """Run a control plane with simulated GPU nodes. Its processes and files are removed when the context ends."""
    require_free_disk(LOCAL_STATE_DIR, 1, "a control plane")
    paths = binaries.resolve([*CONTROL_PLANE_BINARIES, "kwok"])
    with scratch_dir("control-planes") as state:
        ports = (free_port(), free_port())
        flags = apiserver_flags or {}
        plane = ControlPlane(state, "127.0.0.1", free_port(), ports, "10.96.0.0/16", apiserver_flags=flags)
        try:
            plane.processes.launch(die_with_parent=True)
            plane.start()
            simulated_nodes.start_kwok(plane, paths["kwok"])
            with plane.client() as client:
                simulated_nodes.add_nodes(client, nodes, gpus_per_node)
            yield plane
        finally:
            plane.processes.shutdown()


def _first_host_ip(cidr: str) -> str:
    """Return the first address of the Service range. Kubernetes gives it to the API server's own Service."""
    network, _, _ = cidr.partition("/")
    return network.rsplit(".", 1)[0] + ".1"


def _flag_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
