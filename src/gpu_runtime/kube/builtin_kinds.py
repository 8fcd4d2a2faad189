"""Models of the built-in Kubernetes kinds, such as Pod and Lease, with only the fields that the controllers read."""

import msgspec

from gpu_runtime.kube.meta import ApiResource, Condition, KubeObject, KubeStruct


class ContainerStateWaiting(KubeStruct, frozen=True, kw_only=True):
    reason: str = ""
    message: str = ""


class ContainerStateTerminated(KubeStruct, frozen=True, kw_only=True):
    exit_code: int = 0
    reason: str = ""
    message: str = ""


class ContainerState(KubeStruct, frozen=True, kw_only=True):
    """At most one of the fields is set."""

    waiting: ContainerStateWaiting | None = None
    terminated: ContainerStateTerminated | None = None


class ContainerStatus(KubeStruct, frozen=True, kw_only=True):
    name: str
    ready: bool = False
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
    priority_class_name: str = ""
    volumes: tuple[Volume, ...] = ()


class PodStatus(KubeStruct, frozen=True, kw_only=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    nominated_node_name: str = ""
    """The node on which the scheduler preempts other pods for this pod."""
    conditions: tuple[Condition, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(KubeObject, frozen=True, kw_only=True):
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def is_ready(self) -> bool:
        return self._has_condition("Ready")

    @property
    def is_on_lost_node(self) -> bool:
        """Whether the node controller has set the pod to not ready, although the kubelet reported ready containers."""
        return self._has_condition("ContainersReady") and not self.is_ready

    @property
    def is_unschedulable(self) -> bool:
        """Whether the scheduler found no node for the pod."""
        return self.scheduling_failure is not None

    @property
    def scheduling_failure(self) -> str | None:
        """Why the scheduler found no node for the pod, or None if it found one or has not tried yet."""
        for each in self.status.conditions:
            if each.type == "PodScheduled" and each.reason == "Unschedulable":
                return each.message
        return None

    @property
    def is_running(self) -> bool:
        """Whether the pod has a node, and neither ends nor has ended."""
        return bool(self.spec.node_name) and self.metadata.deletion_timestamp is None and not self.has_ended

    @property
    def has_ended(self) -> bool:
        return self.status.phase in ("Failed", "Succeeded")

    def _has_condition(self, name: str) -> bool:
        return any(each.type == name and each.status == "True" for each in self.status.conditions)


class DeploymentStatus(KubeStruct, frozen=True, kw_only=True):
    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    conditions: tuple[Condition, ...] = ()


class Deployment(KubeObject, frozen=True, kw_only=True):
    """Only the metadata is read."""


class ReplicaSet(KubeObject, frozen=True, kw_only=True):
    """Only the metadata is read."""


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


class LeaseSpec(KubeStruct, frozen=True, kw_only=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(KubeObject, frozen=True, kw_only=True):
    spec: LeaseSpec = LeaseSpec()


class Event(KubeObject, frozen=True, kw_only=True):
    note: str = ""


class StorageClass(KubeObject, frozen=True, kw_only=True):
    provisioner: str = ""
    volume_binding_mode: str = "Immediate"
    allow_volume_expansion: bool = False


PODS = ApiResource("", "v1", "Pod", "pods", Pod)
PVCS = ApiResource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", PersistentVolumeClaim)
DEPLOYMENTS = ApiResource("apps", "v1", "Deployment", "deployments", Deployment)
REPLICA_SETS = ApiResource("apps", "v1", "ReplicaSet", "replicasets", ReplicaSet)
STORAGE_CLASSES = ApiResource("storage.k8s.io", "v1", "StorageClass", "storageclasses", StorageClass, namespaced=False)
LEASES = ApiResource("coordination.k8s.io", "v1", "Lease", "leases", Lease)
EVENTS = ApiResource("events.k8s.io", "v1", "Event", "events", Event)
