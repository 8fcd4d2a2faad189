"""Cause and remedy of every reason of the Ready condition, and of every Event."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gpu_runtime.contract.crd.conditions import ReadyReason

UNIT, POOL, STORAGE = "GPUUnit", "StockPool", "GPUStorage"

PODS_CONTINUE = "An existing pod with the previous spec keeps running; a new unit has no pod."


@dataclass(frozen=True)
class ReasonGuide:
    kinds: tuple[str, ...]
    phase: str
    cause: str
    remedy: str
    meanwhile: str = ""
    """What happens to pods and data until then, and how it recovers."""


REASONS: Mapping[ReadyReason, ReasonGuide] = MappingProxyType(
    {
        ReadyReason.INVALID_SPEC: ReasonGuide(
            (UNIT, POOL, STORAGE),
            "Failed",
            "The spec has errors that the CRD does not reject. The message names each field. A function must not declare the port of"
            " the worker sidecar (`serverless.sidecar.port`, 20257), because both containers share the network of the pod; the same number with UDP is allowed.",
            "Correct the fields that the message names. The controller reconciles the change at once.",
            f"The controller changes no child. {PODS_CONTINUE} Existing workers of a function keep serving.",
        ),
        ReadyReason.SCALED_TO_ZERO: ReasonGuide(
            (UNIT, POOL),
            "Empty",
            "The unit has `running: false`, or the pool has `replicas: 0`, and no pod is left.",
            "Nothing is wrong. Start the unit (`POST …/start` or `running: true`), or scale the pool.",
            "The unit keeps its Service, its storages and its attachments.",
        ),
        ReadyReason.POD_STARTUP_FAILED: ReasonGuide(
            (UNIT, POOL),
            "Failed",
            "The Deployment exists, but its pod does not become ready: the image cannot be pulled, the container exits, no node has"
            " enough resources, or a ResourceQuota or policy of the namespace rejects the pod. The message says which.",
            "Image: correct `spec.image` or the registry access. Exit code: read the container log. No node: add nodes or free GPUs."
            " Quota: stop or delete units of the namespace, or raise the quota (`config/overlays/production/quotas.yaml`).",
            "Kubernetes retries. The unit becomes Ready without another action.",
        ),
        ReadyReason.POD_STATUS_SYNC_FAILED: ReasonGuide(
            (UNIT, POOL),
            "Progressing",
            "The controller manager cannot list or watch pods, so it cannot say why the pods are not available. The pods themselves"
            " may be healthy. The message has the error: missing RBAC, or an unreachable API server.",
            "RBAC: apply `config/rbac` again. Otherwise restore the access to the API server.",
            "Pods keep running. New units from stock or with storages do not start, and storages are not detached. The watch is"
            " retried with a backoff of at most 5 s, and the object is reconciled every 15 s.",
        ),
        ReadyReason.SERVICE_SYNC_FAILED: ReasonGuide(
            (UNIT, POOL),
            "Failed",
            "The API server rejected the Service (400, 403, 413 or 422). The message has its answer.",
            "Correct what the message names: the ports, a quota, RBAC, or an admission policy.",
            "NetworkPolicy and Deployment exist, so the pod runs; no Service leads to it. Retried every 15 s.",
        ),
        ReadyReason.DEPLOYMENT_SYNC_FAILED: ReasonGuide(
            (UNIT, POOL),
            "Failed",
            "The API server rejected the Deployment (400, 403, 413 or 422), for example because of an admission policy. The message"
            " has its answer. (If it rejects only the pods, the reason is `PodStartupFailed`.)",
            "Correct what the message names: the policy, the quota, RBAC, or the spec of the unit.",
            f"{PODS_CONTINUE} The NetworkPolicy exists already, the Service does not. Retried every 15 s; a change of the unit is"
            " tried at once.",
        ),
        ReadyReason.NETWORK_POLICY_SYNC_FAILED: ReasonGuide(
            (UNIT,),
            "Failed",
            "The API server rejected the NetworkPolicy. The controller does not create the Deployment before the policy exists.",
            "Correct what the message names.",
            f"{PODS_CONTINUE} Retried every 15 s.",
        ),
        ReadyReason.NAME_TAKEN: ReasonGuide(
            (UNIT, POOL, STORAGE),
            "Failed; Progressing while a child of a deleted object with the same name is still being deleted",
            "A Deployment, Service, NetworkPolicy or PersistentVolumeClaim with the name of the child exists and belongs to another"
            " owner. The platform does not overwrite or delete it.",
            "Failed: delete that object, or create the unit, pool or storage with another name. To let a storage adopt an existing PersistentVolumeClaim with"
            " its data, set the label `runtime.lokiwager.io/storage=<name>` on it. Progressing: nothing to do; if it lasts, look at the finalizers of the old child.",
            "The children before it in the order NetworkPolicy, Deployment, Service exist, so the pod may run. Checked every 15 s, and"
            " every second while an old child is being deleted. It recovers without another action.",
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
            "The pod of the consumed stock unit still holds the GPUs. The controller creates the unit's Deployment when that pod is"
            " deleted.",
            "Wait; it takes about a second. If it lasts, the message names the pod: check its node and its finalizers.",
        ),
        ReadyReason.STORAGE_NOT_READY: ReasonGuide(
            (UNIT,),
            "Progressing",
            "A mounted storage is not attached to this unit yet, is not Ready, or is still mounted by another pod, usually a"
            " terminating pod of a deleted unit. Two units' pods never mount one storage.",
            "Wait for the storage: `kubectl describe gpustorage <name>` shows what it waits for. If a pod still mounts it after more"
            " than 315 s (the longest drain of a worker), the pod hangs: find out why (unreachable node, finalizer), make sure that its"
            " containers have stopped, remove a leftover finalizer, and delete the pod with `--force`. For a dead node see"
            " [failure semantics](../failure-semantics.md#when-a-node-dies). The unit starts when the pod is deleted.",
            "The unit does not start. A running unit that gained a mount keeps running without it.",
        ),
        ReadyReason.STORAGE_MOUNT_INVALID: ReasonGuide(
            (UNIT,),
            "Failed",
            "A mounted storage does not exist in the namespace, is being deleted, or is attached to another unit"
            " (`spec.attachedTo`).",
            "Create the storage, or change `spec.storageMounts`. If another unit has it, delete that unit or remove the storage from"
            " its `spec.storageMounts`. Stopping that unit does not help: a stopped unit keeps its storages. Do not edit"
            " `spec.attachedTo`.",
            "The unit does not start; if it ran already, it keeps running without the storage. When no pod mounts the storage any more, the controller detaches it, attaches it to the oldest unit that names it, and"
            " starts that unit, within seconds.",
        ),
        ReadyReason.CLAIM_PENDING: ReasonGuide(
            (STORAGE,),
            "Pending",
            "The PersistentVolumeClaim has no volume yet, or the StorageClass does not exist.",
            "Wait for the provisioner. If the message names a missing StorageClass, create it, or create the storage with another"
            " class. If it names a provisioner error, correct that.",
            "Units that mount the storage wait. Checked every 15 s.",
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
            "Another client deleted the PersistentVolumeClaim or its PersistentVolume, or is deleting it. The controller does not"
            " create a new claim: an empty volume would silently replace the lost data.",
            "Still being deleted: copy the data before the last pod that mounts it ends. Deleted: restore the claim with the same"
            " name and namespace from a backup, with the label `runtime.lokiwager.io/storage=<name>`. To start empty, delete the"
            " GPUStorage and create it again.",
            "Units cannot mount it. Pods that mount a claim that is being deleted keep running. Checked every 15 s.",
        ),
        ReadyReason.CLAIM_SYNC_FAILED: ReasonGuide(
            (STORAGE,),
            "Failed",
            "The API server rejected the PersistentVolumeClaim, or the storage adopted a claim with another storage class or access"
            " mode, which Kubernetes does not allow to change.",
            "Rejected: correct what the message names. Adopted: create the GPUStorage again with the class of the claim. The name must"
            " be the same, so delete this GPUStorage first. **That deletes the claim and its data, unless you first remove the label**"
            " `runtime.lokiwager.io/storage` **and the annotation** `runtime.lokiwager.io/storage-uid` from the claim, in one patch."
            " Then create the new GPUStorage and set the label again. First"
            " remove the storage from the `storageMounts` of all units, or delete them: the deletion waits for them.",
            "Claim and data are unchanged, and pods that mount it keep running. Checked every 15 s.",
        ),
        ReadyReason.RESIZE_PENDING: ReasonGuide(
            (STORAGE,),
            "Ready",
            "The volume is growing.",
            "Wait. If the message says that the file system resize is pending, start a unit that mounts the storage.",
            "Units can mount the storage, and pods keep running.",
        ),
        ReadyReason.RESIZE_REFUSED: ReasonGuide(
            (STORAGE,),
            "Ready",
            "`spec.size` was raised, but the StorageClass does not have `allowVolumeExpansion: true`, or the API server rejected the"
            " expansion.",
            "Set `allowVolumeExpansion: true` on the StorageClass. `spec.size` cannot be set back: the CRD rejects a smaller size. If"
            " the class cannot expand volumes, create another storage and copy the data.",
            "The data is unchanged, units can mount the storage, and pods keep running. The controller notices a change of the"
            " StorageClass at once, at the latest after 15 s.",
        ),
        ReadyReason.STORAGE_READY: ReasonGuide((STORAGE,), "Ready", "The volume is bound.", "Nothing to do."),
        ReadyReason.DELETING: ReasonGuide(
            (STORAGE,),
            "as before the deletion",
            "The storage is being deleted. Its finalizer waits for what the message names: a unit or pod that mounts it, or the"
            " PersistentVolumeClaim.",
            "Delete or change the unit that the message names. Do not remove the finalizer by hand: it protects mounted data.",
            "Pods that mount the storage keep running, and the data is kept until they end.",
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
