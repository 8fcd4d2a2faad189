"""Cause and remedy of every reason of the Ready condition, and of every Event."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gpu_runtime.contract.crd.conditions import ReadyReason

UNIT, POOL, STORAGE = "GPUUnit", "StockPool", "GPUStorage"


@dataclass(frozen=True)
class ReasonGuide:
    kinds: tuple[str, ...]
    phase: str
    cause: str
    remedy: str


REASONS: Mapping[ReadyReason, ReasonGuide] = MappingProxyType(
    {
        ReadyReason.INVALID_SPEC: ReasonGuide(
            (UNIT, POOL, STORAGE),
            "Failed",
            "The spec has errors that the CRD does not reject. The message names each field.",
            "Correct the fields that the message names.",
        ),
        ReadyReason.SCALED_TO_ZERO: ReasonGuide(
            (UNIT, POOL),
            "Empty",
            "The unit has `running: false`, or the pool has `replicas: 0`, and no pod is left.",
            "Nothing is wrong. Start the unit (`POST …/start` or `running: true`), or scale the pool.",
        ),
        ReadyReason.POD_STARTUP_FAILED: ReasonGuide(
            (UNIT, POOL),
            "Failed",
            "The pod does not become ready: the image cannot be pulled, the container exits, no node has enough resources,"
            " or a quota or policy of the namespace denies the pod. The message says which.",
            "Image: correct `spec.image` or the registry access. Exit code: read the container log. No node: add nodes or free"
            " GPUs. Quota or policy: change it, or the spec.",
        ),
        ReadyReason.POD_STATUS_SYNC_FAILED: ReasonGuide(
            (UNIT, POOL),
            "Progressing",
            "The controller manager cannot list or watch pods.",
            "Check the RBAC of `controller-manager` and the API server. The controller retries.",
        ),
        ReadyReason.SERVICE_SYNC_FAILED: ReasonGuide(
            (UNIT, POOL),
            "Failed",
            "The API server rejected the Service. The message has its answer.",
            "Correct what the message names, for example the ports, a quota, or a policy. The controller retries.",
        ),
        ReadyReason.DEPLOYMENT_SYNC_FAILED: ReasonGuide(
            (UNIT, POOL),
            "Failed",
            "The API server rejected the Deployment. The message has its answer.",
            "Correct what the message names, for example a quota or an admission policy. The controller retries.",
        ),
        ReadyReason.NETWORK_POLICY_SYNC_FAILED: ReasonGuide(
            (UNIT,),
            "Failed",
            "The API server rejected the NetworkPolicy. The controller does not create the Deployment before the policy exists.",
            "Correct what the message names. The controller retries.",
        ),
        ReadyReason.NAME_TAKEN: ReasonGuide(
            (UNIT, POOL, STORAGE),
            "Failed; Progressing while a child of a deleted object with the same name is still being deleted",
            "A Deployment, Service, NetworkPolicy or PersistentVolumeClaim with the name of the child exists and belongs to"
            " another owner.",
            "Delete or rename that object, or use another name. To let a storage adopt an existing PersistentVolumeClaim, set"
            " the label that the message names.",
        ),
        ReadyReason.DEPLOYMENT_PROGRESSING: ReasonGuide(
            (POOL,),
            "Progressing",
            "Some replicas are not available yet.",
            "Wait. If it lasts, look at the pods: `kubectl describe pods -l runtime.lokiwager.io/pool=<name>`.",
        ),
        ReadyReason.DEPLOYMENT_READY: ReasonGuide((POOL,), "Ready", "All replicas are available.", "Nothing to do."),
        ReadyReason.UNIT_PROGRESSING: ReasonGuide(
            (UNIT,),
            "Progressing",
            "The pod is starting or stopping.",
            "Wait. If it lasts, look at the pod: `kubectl describe pods -l runtime.lokiwager.io/unit=<name>`.",
        ),
        ReadyReason.UNIT_READY: ReasonGuide((UNIT,), "Ready", "The pod of the unit is ready.", "Nothing to do."),
        ReadyReason.STOCK_RELEASING: ReasonGuide(
            (UNIT,),
            "Progressing",
            "The pod of the consumed stock unit still holds the GPUs. The controller creates the unit's Deployment when that pod"
            " is deleted.",
            "Wait; it takes about a second. If it lasts, the message names the pod: check its node and its finalizers.",
        ),
        ReadyReason.STORAGE_NOT_READY: ReasonGuide(
            (UNIT,),
            "Progressing",
            "A mounted storage is not attached to this unit yet, is not Ready, or is still mounted by a pod of another unit.",
            "Wait for the storage. `kubectl describe gpustorage <name>` shows what it waits for.",
        ),
        ReadyReason.STORAGE_MOUNT_INVALID: ReasonGuide(
            (UNIT,),
            "Failed",
            "A mounted storage does not exist in the namespace, is being deleted, or is attached to another unit.",
            "Create the storage, or detach it from the other unit (delete that unit or change its mounts), or change"
            " `spec.storageMounts`.",
        ),
        ReadyReason.CLAIM_PENDING: ReasonGuide(
            (STORAGE,),
            "Pending",
            "The PersistentVolumeClaim has no volume yet, or the StorageClass does not exist.",
            "Wait for the provisioner. If the message names a missing StorageClass, create it, or create the storage with"
            " another class. If it names a provisioner error, correct that.",
        ),
        ReadyReason.WAIT_FOR_FIRST_CONSUMER: ReasonGuide(
            (STORAGE,),
            "Pending",
            "The StorageClass binds when the first pod mounts the volume.",
            "Nothing is wrong. Create a unit that mounts the storage.",
        ),
        ReadyReason.CLAIM_LOST: ReasonGuide(
            (STORAGE,),
            "Failed",
            "The PersistentVolumeClaim or its PersistentVolume was deleted, or is being deleted. The controller does not"
            " replace it with an empty one.",
            "Copy the data while a pod still mounts it, or restore the volume from a backup. To start empty, delete the"
            " GPUStorage and create it again.",
        ),
        ReadyReason.CLAIM_SYNC_FAILED: ReasonGuide(
            (STORAGE,),
            "Failed",
            "The API server rejected the PersistentVolumeClaim, or an adopted claim has another storage class or access mode.",
            "Correct what the message names, or create a storage that matches the claim.",
        ),
        ReadyReason.RESIZE_PENDING: ReasonGuide(
            (STORAGE,),
            "Ready",
            "The volume is growing. The storage can be used meanwhile.",
            "Wait. If the message says that the file system resize is pending, start a unit that mounts the storage.",
        ),
        ReadyReason.RESIZE_REFUSED: ReasonGuide(
            (STORAGE,),
            "Ready",
            "The volume cannot grow: the StorageClass does not allow expansion, or the API server rejected it. The data is not"
            " affected.",
            "Set `allowVolumeExpansion: true` on the StorageClass, or set `spec.size` back.",
        ),
        ReadyReason.STORAGE_READY: ReasonGuide((STORAGE,), "Ready", "The volume is bound.", "Nothing to do."),
        ReadyReason.DELETING: ReasonGuide(
            (STORAGE,),
            "as before the deletion",
            "The storage is being deleted. Its finalizer waits for what the message names: a unit or pod that mounts it, or"
            " the PersistentVolumeClaim.",
            "Delete or change the unit that the message names. Do not remove the finalizer by hand: it protects mounted data.",
        ),
    }
)

EVENTS: Mapping[str, tuple[str, str, str, str]] = MappingProxyType(
    {
        "WorkerFailed": (
            "GPUUnit (the function)",
            "Warning",
            "A worker of the function did not start, stopped sending heartbeats, or failed. The activator replaces it.",
            "Read the message, then the log of the worker's pod. Correct the image or the handler.",
        ),
    }
)
"""Events whose reason is not a reason of the Ready condition: object, type, cause, remedy."""
