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
    volumes: tuple[Volume, ...] = ()


class PodStatus(KubeStruct, frozen=True, kw_only=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(KubeObject, frozen=True, kw_only=True):
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class DeploymentStatus(KubeStruct, frozen=True, kw_only=True):
    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    conditions: tuple[Condition, ...] = ()


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
REPLICA_SETS = ApiResource("apps", "v1", "ReplicaSet", "replicasets", ReplicaSet)
STORAGE_CLASSES = ApiResource("storage.k8s.io", "v1", "StorageClass", "storageclasses", StorageClass, namespaced=False)
LEASES = ApiResource("coordination.k8s.io", "v1", "Lease", "leases", Lease)
EVENTS = ApiResource("events.k8s.io", "v1", "Event", "events", Event)
