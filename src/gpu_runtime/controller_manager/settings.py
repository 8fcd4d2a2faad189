"""The settings of the controller manager."""

from typing import Annotated

from msgspec import Meta

from gpu_runtime.contract.crd.well_known import STOCK_NAMESPACE, SYSTEM_NAMESPACE
from gpu_runtime.process.settings import BaseSettings
from gpu_runtime.process.shared_settings import (
    KubernetesSettings,
    LeaderElectionSettings,
    NatsSettings,
    PositiveSeconds,
    ProcessSettings,
)

Name = Annotated[str, Meta(min_length=1, max_length=253)]
ResourceQuantity = Annotated[str, Meta(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi)?$")]
PortNumber = Annotated[int, Meta(ge=1, le=65535)]
ReconcileConcurrency = Annotated[int, Meta(ge=1, le=256)]


class ControllerNamespaceSettings(BaseSettings, frozen=True, kw_only=True):
    system: Name = SYSTEM_NAMESPACE
    """Where the platform itself runs: the leader's lease lies here."""

    stock: Name = STOCK_NAMESPACE
    """GPUUnits in this namespace are stock; in any other namespace they are active."""


class ImageSettings(BaseSettings, frozen=True, kw_only=True):
    stock: Name
    """The platform's own image, which stock units run."""

    sidecar: str = ""
    """The image of workers' sidecars. Empty: the same as stock's, which has all of the platform."""

    placeholder: Name
    """The image of StockPools that name none. It must have a shell and `sleep`."""


class ReconcileConcurrencySettings(BaseSettings, frozen=True, kw_only=True):
    gpu_units: ReconcileConcurrency = 16
    """How many GPUUnits are reconciled at a time."""

    gpu_storages: ReconcileConcurrency = 4
    """How many GPUStorages are reconciled at a time."""

    stock_pools: ReconcileConcurrency = 4
    """How many StockPools are reconciled at a time."""


class PodSecuritySettings(BaseSettings, frozen=True, kw_only=True):
    require_non_root: bool = False
    """Whether users' images must run as another user than root. Images that do not are then refused at start."""


class SidecarContainerSettings(BaseSettings, frozen=True, kw_only=True):
    """Of every worker. A change of these starts the workers again."""

    port: PortNumber = 20257
    """Where it answers the kubelet, on the pod's own network: no port of a function may have this number."""

    cpu: ResourceQuantity = "50m"
    """What it reserves of the processors."""

    memory: ResourceQuantity = "96Mi"
    """What it reserves of the memory."""

    memory_limit: ResourceQuantity = "384Mi"
    """The most memory it may take. What is in flight is held here: concurrency times a few times the largest body."""

    drain_timeout_seconds: PositiveSeconds = 300
    """How long the end of a worker waits for what it has in hand. What takes longer goes to another worker."""

    heartbeat_seconds: PositiveSeconds = 5
    """How often a worker tells that it is there."""

    max_deliveries: Annotated[int, Meta(ge=1, le=100)] = 5
    """How often an invocation is delivered to a worker before it becomes a dead letter."""


class EgressSettings(BaseSettings, frozen=True, kw_only=True):
    restrict: bool = False
    """Whether workers may reach nothing but DNS and the queue. A pod has one network: users' programs, too."""

    nats_namespace: Name = "messaging"
    """Where the queue's servers run."""

    nats_port: PortNumber = 4222
    """Where they listen."""


class ServerlessSettings(BaseSettings, frozen=True, kw_only=True):
    nats: NatsSettings = NatsSettings()
    """How workers reach the queue: handed on to their sidecars as it is."""

    credentials_secret: str = ""
    """A Secret in the namespaces of units, mounted into sidecars alone at /etc/gpu-runtime-nats: what the settings
    above name as files lies there. Empty: none."""

    sidecar: SidecarContainerSettings = SidecarContainerSettings()
    """What runs beside the user's container of a worker."""

    egress: EgressSettings = EgressSettings()
    """What workers may reach."""


class ControllerManagerSettings(ProcessSettings, frozen=True, kw_only=True):
    kubernetes: KubernetesSettings = KubernetesSettings()
    """How Kubernetes is reached."""

    namespaces: ControllerNamespaceSettings = ControllerNamespaceSettings()
    """Which namespaces have a meaning."""

    leader_election: LeaderElectionSettings = LeaderElectionSettings()
    """One controller manager works at a time; others stand by."""

    images: ImageSettings
    """Images that the platform itself brings."""

    max_concurrent_reconciles: ReconcileConcurrencySettings = ReconcileConcurrencySettings()
    """How much is done at a time."""

    pod_security: PodSecuritySettings = PodSecuritySettings()
    """What is demanded of users' containers beyond the default: seccomp, no privilege escalation, no token."""

    serverless: ServerlessSettings = ServerlessSettings()
    """What units that serve a function have beside the user's container."""

    cluster_domain: Name = "cluster.local"
    """The DNS domain of the cluster, as it appears in access URLs."""

    resync_seconds: PositiveSeconds = 600
    """How often every object is looked at again although nothing was heard of it."""
