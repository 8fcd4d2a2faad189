"""Settings of the controller manager process, read from its YAML file."""

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
    """Namespace of the platform's own processes. It holds the leader election Lease and the Operations."""

    stock: Name = STOCK_NAMESPACE
    """Namespace of stock units. GPUUnits in any other namespace are active units."""


class ImageSettings(BaseSettings, frozen=True, kw_only=True):
    stock: Name
    """Image of stock units. It is the platform's own image and must contain the module `gpu_runtime.stock_process`."""

    sidecar: str = ""
    """Image of the worker sidecar. Empty means the stock image, which contains all platform processes."""

    placeholder: Name
    """Image of StockPools without spec.image. It must contain `sh` and `sleep`."""


class ReconcileConcurrencySettings(BaseSettings, frozen=True, kw_only=True):
    gpu_units: ReconcileConcurrency = 16
    """Maximum number of GPUUnits that are reconciled concurrently. Further GPUUnits wait in the work queue."""

    gpu_storages: ReconcileConcurrency = 4
    """Maximum number of GPUStorages that are reconciled concurrently. Further GPUStorages wait in the work queue."""

    stock_pools: ReconcileConcurrency = 4
    """Maximum number of StockPools that are reconciled concurrently. Further StockPools wait in the work queue."""


class PodSecuritySettings(BaseSettings, frozen=True, kw_only=True):
    require_non_root: bool = False
    """Require a non-root user in users' containers. If true, the kubelet does not start images that run as root."""


class SidecarContainerSettings(BaseSettings, frozen=True, kw_only=True):
    """Settings of the sidecar container of every worker. A change restarts all workers."""

    port: PortNumber = 20257
    """TCP port of the sidecar's health and drain endpoints in the pod network. A function must not declare it."""

    cpu: ResourceQuantity = "50m"
    """CPU request of the sidecar container."""

    memory: ResourceQuantity = "96Mi"
    """Memory request of the sidecar container."""

    memory_limit: ResourceQuantity = "384Mi"
    """Memory limit of the sidecar container. The sidecar holds the bodies of all in-flight invocations: plan for the
    concurrency of the function times a few times the largest body. If it exceeds the limit, the kernel kills it."""

    drain_timeout_seconds: PositiveSeconds = 300
    """How long a worker that terminates waits for its in-flight invocations. Invocations that take longer are
    redelivered to another worker."""

    heartbeat_seconds: PositiveSeconds = 5
    """Interval between two heartbeats of a worker."""

    max_deliveries: Annotated[int, Meta(ge=1, le=100)] = 5
    """Maximum number of deliveries of an invocation to workers. After the last one, it is dead-lettered. A change
    restarts all workers, as for every setting of the sidecar."""


class EgressSettings(BaseSettings, frozen=True, kw_only=True):
    restrict: bool = False
    """Restrict the egress of workers to DNS and NATS. The containers of a pod share one network, so the restriction
    applies to the user's container, too. If false, egress is not restricted."""

    nats_namespace: Name = "messaging"
    """Namespace of the NATS servers."""

    nats_port: PortNumber = 4222
    """TCP port on which the NATS servers accept clients."""


class ServerlessSettings(BaseSettings, frozen=True, kw_only=True):
    nats: NatsSettings = NatsSettings()
    """How workers connect to NATS. The controller manager copies this section into the settings of every sidecar."""

    credentials_secret: str = ""
    """Name of a Secret with NATS credentials. It must exist in every namespace with workers. It is mounted at
    /etc/gpu-runtime-nats, only into sidecar containers; the file settings of `nats` refer to files in this directory.
    Empty means that no Secret is mounted."""

    sidecar: SidecarContainerSettings = SidecarContainerSettings()
    """The sidecar container that runs next to the user's container in the pod of a worker."""

    egress: EgressSettings = EgressSettings()
    """Egress rules in the NetworkPolicy of workers."""


class ControllerManagerSettings(ProcessSettings, frozen=True, kw_only=True):
    kubernetes: KubernetesSettings = KubernetesSettings()
    """How this process connects to the Kubernetes API server."""

    namespaces: ControllerNamespaceSettings = ControllerNamespaceSettings()
    """Namespaces with a special meaning."""

    leader_election: LeaderElectionSettings = LeaderElectionSettings()
    """Leader election. Only the leader reconciles; the other replicas are standbys with synced caches."""

    images: ImageSettings
    """Images of containers that the platform itself starts."""

    max_concurrent_reconciles: ReconcileConcurrencySettings = ReconcileConcurrencySettings()
    """Maximum number of concurrent reconciles of each controller."""

    pod_security: PodSecuritySettings = PodSecuritySettings()
    """Additional security requirements for users' containers. They always run with the RuntimeDefault seccomp profile,
    without privilege escalation and without a service account token."""

    serverless: ServerlessSettings = ServerlessSettings()
    """Settings of workers, that is, of units that serve a function."""

    cluster_domain: Name = "cluster.local"
    """DNS domain of the cluster. It is part of the access URLs in the status of units."""

    resync_seconds: PositiveSeconds = 600
    """Interval at which every GPUUnit, GPUStorage and StockPool is reconciled even without a change."""
