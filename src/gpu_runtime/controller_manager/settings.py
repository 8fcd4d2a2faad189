"""Settings of the controller manager process, read from its YAML file."""

from typing import Annotated, Literal

from msgspec import Meta

from gpu_runtime.contract.crd.template import SECRET_NAME_PREFIX
from gpu_runtime.contract.crd.well_known import STOCK_NAMESPACE, SYSTEM_NAMESPACE
from gpu_runtime.contract.messages.worker_event import HeartbeatSeconds
from gpu_runtime.contract.timing import DRAIN_TIMEOUT_SECONDS, HEARTBEAT_SECONDS
from gpu_runtime.process.settings import BaseSettings
from gpu_runtime.process.shared_settings import (
    KubernetesSettings,
    LeaderElectionSettings,
    NatsSettings,
    PodPolicySettings,
    PositiveSeconds,
    ProcessSettings,
)

Name = Annotated[str, Meta(min_length=1, max_length=253)]
ResourceQuantity = Annotated[str, Meta(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi)?$")]
PortNumber = Annotated[int, Meta(ge=1, le=65535)]
ReconcileConcurrency = Annotated[int, Meta(ge=1, le=256)]


class ControllerNamespaceSettings(BaseSettings, frozen=True, kw_only=True):
    system: Name = SYSTEM_NAMESPACE
    """Namespace of the platform. The leader election Lease and the Operations are in this namespace."""

    stock: Name = STOCK_NAMESPACE
    """Namespace of stock units. GPUUnits in any other namespace are active units."""


class ImageSettings(BaseSettings, frozen=True, kw_only=True):
    stock: Name
    """Image of stock units. Use the image of the platform: it contains the module `gpu_runtime.stock_process`, which
    stock units run. A change of this setting restarts no pod: running pods keep their image until
    `gpu-runtime units roll --all` replaces them."""

    sidecar: str = ""
    """Image of the worker sidecar. If this setting is empty, the sidecar uses images.stock, which contains all
    processes of the platform. A change of this setting restarts no worker: running workers keep their image until
    `gpu-runtime units roll --all` replaces their pods."""

    placeholder: Name
    """Image of the pods of a StockPool that has no spec.image. The image must contain `sh` and `sleep`."""


class ReconcileConcurrencySettings(BaseSettings, frozen=True, kw_only=True):
    gpu_units: ReconcileConcurrency = 16
    """Maximum number of GPUUnits that are reconciled concurrently. Further GPUUnits wait in the work queue."""

    gpu_storages: ReconcileConcurrency = 4
    """Maximum number of GPUStorages that are reconciled concurrently. Further GPUStorages wait in the work queue."""

    stock_pools: ReconcileConcurrency = 4
    """Maximum number of StockPools that are reconciled concurrently. Further StockPools wait in the work queue."""


class PodSettings(PodPolicySettings, frozen=True, kw_only=True):
    default_ephemeral_storage: ResourceQuantity | Literal[""] = "100Gi"
    """Limit of the disk space of pods that have no spec.ephemeralStorage. Kubernetes evicts a pod that uses more disk
    space than the limit. The limit reserves no disk space. If this setting is empty, these pods have no limit. A change
    of this setting restarts these pods."""


class SidecarContainerSettings(BaseSettings, frozen=True, kw_only=True):
    """Settings of the sidecar container of every worker. A change of any of them restarts all workers."""

    port: PortNumber = 20257
    """TCP port on which the sidecar serves /healthz, /readyz, /metrics and /drained. A function must not declare this
    port, because the containers of a pod share one network."""

    cpu: ResourceQuantity = "50m"
    """CPU request of the sidecar container."""

    memory: ResourceQuantity = "96Mi"
    """Memory request of the sidecar container."""

    memory_limit: ResourceQuantity = "384Mi"
    """Memory limit of the sidecar container. The sidecar keeps the bodies of all invocations in flight in memory. For
    each invocation in flight, plan a few times the size of the largest body. The field serverless.concurrency of a
    function limits the number of invocations in flight. If the sidecar exceeds the limit, the kernel kills the
    sidecar."""

    drain_timeout_seconds: PositiveSeconds = DRAIN_TIMEOUT_SECONDS
    """Time in seconds that a terminating worker waits for its invocations in flight. If an invocation takes longer than
    this time, JetStream redelivers the invocation to another worker."""

    heartbeat_seconds: HeartbeatSeconds = HEARTBEAT_SECONDS
    """Interval in seconds between two heartbeats of a worker. serverless.nats.streams.dispatchAckWaitSeconds must be at
    least three times this interval."""

    max_attempts: Annotated[int, Meta(ge=1, le=100)] = 5
    """Maximum number of times that workers start an invocation. If the last attempt also fails, a worker dead-letters
    the invocation. A change of this setting, or of any other setting of the sidecar, restarts all workers."""


class EgressSettings(BaseSettings, frozen=True, kw_only=True):
    restrict: bool = False
    """Whether a NetworkPolicy limits the egress of workers to DNS and NATS. The containers of a pod share one network,
    so the restriction applies to the user's container, too. If false, the egress of workers is not limited."""

    nats_namespace: Name = "messaging"
    """Namespace of the NATS servers."""

    nats_port: PortNumber = 4222
    """TCP port on which the NATS servers accept clients."""


class ServerlessSettings(BaseSettings, frozen=True, kw_only=True):
    nats: NatsSettings = NatsSettings()
    """Connection of workers to NATS. The controller manager copies this section into the settings of every sidecar."""

    credentials_secret: str = ""
    """Name of a Secret with NATS credentials. The Secret must exist in every namespace with workers. The controller
    manager mounts the Secret at /etc/gpu-runtime-nats in the sidecar containers, but not in the users' containers. File
    paths in serverless.nats can refer to this directory. The name must not begin with unit-, because units can use
    Secrets whose names begin with unit-. If the name is empty, the controller manager mounts no Secret."""

    sidecar: SidecarContainerSettings = SidecarContainerSettings()
    """The sidecar container that runs next to the user's container in the pod of a worker."""

    egress: EgressSettings = EgressSettings()
    """Egress rules of workers. One NetworkPolicy per namespace of units contains them."""

    def __post_init__(self) -> None:
        if self.credentials_secret.startswith(SECRET_NAME_PREFIX):
            raise ValueError(f"credentialsSecret must not begin with {SECRET_NAME_PREFIX}: units can use such Secrets")


class LifetimeSettings(BaseSettings, frozen=True, kw_only=True):
    announcement_seconds: PositiveSeconds = 300
    """How many seconds before the end of a unit's lifetime the leader records an Event. The reason of the Event is
    StopsSoon or DeletesSoon."""


class ControllerManagerSettings(ProcessSettings, frozen=True, kw_only=True):
    kubernetes: KubernetesSettings = KubernetesSettings()
    """Connection to the Kubernetes API server."""

    namespaces: ControllerNamespaceSettings = ControllerNamespaceSettings()
    """Namespaces with a special meaning."""

    leader_election: LeaderElectionSettings = LeaderElectionSettings()
    """Leader election. Only the leader reconciles. The other replicas keep their caches synced and wait for the
    Lease."""

    images: ImageSettings
    """Images of the containers that run no image of a user."""

    max_concurrent_reconciles: ReconcileConcurrencySettings = ReconcileConcurrencySettings()
    """Maximum number of concurrent reconciles of each controller."""

    pods: PodSettings = PodSettings()
    """Defaults and limits of the pods of units and stock pools. Whatever the values are, users' containers run with the
    RuntimeDefault seccomp profile, without privilege escalation and without a service account token."""

    lifetimes: LifetimeSettings = LifetimeSettings()
    """The end of units that have maxDurationSeconds, stopUnlessExtendedSeconds or deleteAfterSeconds."""

    serverless: ServerlessSettings = ServerlessSettings()
    """Settings of workers. A worker is a unit that runs invocations of a function."""

    cluster_domain: Name = "cluster.local"
    """DNS domain of the cluster. This domain is part of the access URLs in the status of units."""

    resync_seconds: PositiveSeconds = 600
    """Interval in seconds at which the leader reconciles every GPUUnit, GPUStorage and StockPool, even if nothing
    changed."""
