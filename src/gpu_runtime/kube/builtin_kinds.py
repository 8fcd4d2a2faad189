"""Models of the built-in Kubernetes kinds, such as Pod and Lease, with only the fields that the controllers read."""

from typing import Any

import msgspec

from gpu_runtime.kube.meta import ApiResource, Condition, KubeObject, KubeStruct


class ContainerStateWaiting(KubeStruct, frozen=True, kw_only=True):
    reason: str = ""
    message: str = ""


class ContainerStateRunning(KubeStruct, frozen=True, kw_only=True):
    started_at: str | None = None


class ContainerStateTerminated(KubeStruct, frozen=True, kw_only=True):
    exit_code: int = 0
    signal: int = 0
    reason: str = ""
    message: str = ""
    finished_at: str | None = None


class ContainerState(KubeStruct, frozen=True, kw_only=True):
    """At most one of the fields is set."""

    waiting: ContainerStateWaiting | None = None
    running: ContainerStateRunning | None = None
    terminated: ContainerStateTerminated | None = None


class ContainerStatus(KubeStruct, frozen=True, kw_only=True):
    name: str
    ready: bool = False
    started: bool | None = None
    restart_count: int = 0
    image: str = ""
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class PersistentVolumeClaimVolumeSource(KubeStruct, frozen=True, kw_only=True):
    claim_name: str = ""


class Volume(KubeStruct, frozen=True, kw_only=True):
    persistent_volume_claim: PersistentVolumeClaimVolumeSource | None = None


class PodSpec(KubeStruct, frozen=True, kw_only=True):
    node_name: str = ""
    volumes: tuple[Volume, ...] = ()


class PodStatus(KubeStruct, frozen=True, kw_only=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    conditions: tuple[Condition, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(KubeObject, frozen=True, kw_only=True):
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class DeploymentSpec(KubeStruct, frozen=True, kw_only=True):
    replicas: int = 1
    template: dict[str, Any] = msgspec.field(default_factory=dict)
    """The current pod template, for comparison with the desired one."""
    strategy: dict[str, Any] = msgspec.field(default_factory=dict)
    selector: dict[str, Any] = msgspec.field(default_factory=dict)


class DeploymentStatus(KubeStruct, frozen=True, kw_only=True):
    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    unavailable_replicas: int = 0
    conditions: tuple[Condition, ...] = ()


class Deployment(KubeObject, frozen=True, kw_only=True):
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()


class ReplicaSetSpec(KubeStruct, frozen=True, kw_only=True):
    replicas: int = 1


class ReplicaSetStatus(KubeStruct, frozen=True, kw_only=True):
    observed_generation: int = 0
    replicas: int = 0
    ready_replicas: int = 0
    conditions: tuple[Condition, ...] = ()
    """The message of the condition `ReplicaFailure` names the quota or policy that rejected the pods."""


class ReplicaSet(KubeObject, frozen=True, kw_only=True):
    spec: ReplicaSetSpec = ReplicaSetSpec()
    status: ReplicaSetStatus = ReplicaSetStatus()


class ServicePort(KubeStruct, frozen=True, kw_only=True):
    port: int
    name: str = ""
    protocol: str = "TCP"
    target_port: int | str | None = None


class ServiceSpec(KubeStruct, frozen=True, kw_only=True):
    type: str = "ClusterIP"
    cluster_ip: str = msgspec.field(default="", name="clusterIP")
    selector: dict[str, str] = msgspec.field(default_factory=dict)
    ports: tuple[ServicePort, ...] = ()


class Service(KubeObject, frozen=True, kw_only=True):
    spec: ServiceSpec = ServiceSpec()


class VolumeResourceRequirements(KubeStruct, frozen=True, kw_only=True):
    requests: dict[str, str] = msgspec.field(default_factory=dict)


class PersistentVolumeClaimSpec(KubeStruct, frozen=True, kw_only=True):
    access_modes: tuple[str, ...] = ()
    storage_class_name: str | None = None
    volume_name: str = ""
    resources: VolumeResourceRequirements = VolumeResourceRequirements()


class PersistentVolumeClaimStatus(KubeStruct, frozen=True, kw_only=True):
    phase: str = ""
    capacity: dict[str, str] = msgspec.field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()


class PersistentVolumeClaim(KubeObject, frozen=True, kw_only=True):
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()


class NetworkPolicy(KubeObject, frozen=True, kw_only=True):
    spec: dict[str, Any] = msgspec.field(default_factory=dict)


class NamespaceStatus(KubeStruct, frozen=True, kw_only=True):
    phase: str = ""


class Namespace(KubeObject, frozen=True, kw_only=True):
    status: NamespaceStatus = NamespaceStatus()


class NodeSpec(KubeStruct, frozen=True, kw_only=True):
    unschedulable: bool = False


class NodeStatus(KubeStruct, frozen=True, kw_only=True):
    allocatable: dict[str, str] = msgspec.field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()


class Node(KubeObject, frozen=True, kw_only=True):
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class LeaseSpec(KubeStruct, frozen=True, kw_only=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(KubeObject, frozen=True, kw_only=True):
    spec: LeaseSpec = LeaseSpec()


class EventSeries(KubeStruct, frozen=True, kw_only=True):
    count: int
    last_observed_time: str


class ObjectReference(KubeStruct, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


class Event(KubeObject, frozen=True, kw_only=True):
    type: str = ""
    reason: str = ""
    action: str = ""
    note: str = ""
    event_time: str | None = None
    reporting_controller: str = ""
    regarding: ObjectReference = ObjectReference()
    series: EventSeries | None = None


class StorageClass(KubeObject, frozen=True, kw_only=True):
    provisioner: str = ""
    volume_binding_mode: str = "Immediate"
    allow_volume_expansion: bool = False


PODS = ApiResource("", "v1", "Pod", "pods", Pod)
SERVICES = ApiResource("", "v1", "Service", "services", Service)
PVCS = ApiResource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", PersistentVolumeClaim)
NAMESPACES = ApiResource("", "v1", "Namespace", "namespaces", Namespace, namespaced=False)
NODES = ApiResource("", "v1", "Node", "nodes", Node, namespaced=False)
DEPLOYMENTS = ApiResource("apps", "v1", "Deployment", "deployments", Deployment)
REPLICA_SETS = ApiResource("apps", "v1", "ReplicaSet", "replicasets", ReplicaSet)
NETWORK_POLICIES = ApiResource("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", NetworkPolicy)
STORAGE_CLASSES = ApiResource("storage.k8s.io", "v1", "StorageClass", "storageclasses", StorageClass, namespaced=False)
LEASES = ApiResource("coordination.k8s.io", "v1", "Lease", "leases", Lease)
EVENTS = ApiResource("events.k8s.io", "v1", "Event", "events", Event)
