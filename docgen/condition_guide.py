"""Cause and remedy of every reason of the Ready condition and of every other Event."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gpu_runtime.contract.crd.conditions import ReadyReason

UNIT, POOL, STORAGE = "GPUUnit", "StockPool", "GPUStorage"

NO_ACTION = "No action is necessary."
RETRIED = "The controller retries every 15 s."
CHECKED = "The controller checks every 15 s."
CORRECT_FIELDS = "Correct the fields that the message names."
STARTUP_REMEDY = (
    "If the image cannot be pulled, correct `spec.image` or the access to the registry. If the container exits, read its log. If"
    " no node has enough resources, add nodes, or stop or delete other units. If the quota is exceeded, stop or delete units of the namespace, or"
    " raise the quota (`config/overlays/production/quotas.yaml`). If a policy rejects the pod, change the policy or the spec."
)
STARTUP_RETRIED = "Kubernetes tries again to start the pod. When the cause is removed, the object becomes Ready without another action."
POD_WATCH_REMEDY = (
    "If an RBAC permission is missing, apply `config/rbac` again. Otherwise, restore the connection to the API server."
)
POD_WATCH_CAUSES = (
    "The message contains the error of the list or watch request. Possible causes are a missing RBAC permission and an API server"
    " that cannot be reached."
)
SERVICE_REJECTED = "The API server rejected the Service with status 400, 403, 413 or 422. The message contains the error of the API server."
SERVICE_REMEDY = "Correct the ports, the quota, the RBAC permission or the admission policy that the message names."
DEPLOYMENT_REJECTED = (
    "The API server rejected the Deployment with status 400, 403, 413 or 422, for example because of an admission policy. The"
    " message contains the error of the API server. If the API server accepts the Deployment and rejects only its pods, the"
    " reason is `PodStartupFailed`."
)
DEPLOYMENT_REMEDY = "Correct the policy, the quota, the RBAC permission or the spec that the message names."


@dataclass(frozen=True)
class ReasonGuide:
    phase: str
    cause: str
    remedy: str
    meanwhile: str = ""
    """What happens to pods and data while the condition has this reason, and how the object recovers."""


def _name_taken(kind: str, children: str) -> ReasonGuide:
    return ReasonGuide(
        f"Failed. The phase is Progressing if the existing object belongs to a deleted {kind} with the same name.",
        f"The controller cannot create a child object of the {kind}, because an object of the same kind and with the same name exists"
        " and belongs to another owner. The message names the existing object. The controller does not overwrite the existing object.",
        "In phase Failed: if the existing object is not needed, delete the existing object. If the existing object is needed, create"
        f" the {kind} with another name. In phase Progressing: wait until the existing object is deleted. If the phase stays"
        " Progressing, look at the finalizers of the existing object.",
        f"The controller creates the child objects in the order {children}. The controller stops at the first child object whose name"
        " is in use. If only the name of the Service is in use, the pods run. In phase Failed, the controller checks the name every"
        f" 15 s. In phase Progressing, the controller checks the name every second. When the name is free, the {kind} recovers"
        " without another action.",
    )


UNIT_REASONS: Mapping[ReadyReason, ReasonGuide] = MappingProxyType(
    {
        ReadyReason.INVALID_SPEC: ReasonGuide(
            "Failed",
            "The spec of the unit has errors that the CRD does not reject. The message names each wrong field. For example, a function"
            " must not declare the TCP port of the worker sidecar (setting `serverless.sidecar.port`, default 20257), because the"
            " containers of a pod share one network. A UDP port with the same number is allowed.",
            CORRECT_FIELDS,
            "The controller changes no child object. An existing pod keeps running with the previous spec. If the unit is a function,"
            " its existing workers continue to run invocations. For a new unit, the controller creates no child objects.",
        ),
        ReadyReason.REQUEST_ID_TAKEN: ReasonGuide(
            "Failed",
            "Another function has the same `serverless.requestID`, and its FunctionQueue was created first. The message names the"
            " other function.",
            "Delete one of the two functions. If you delete the other function, the platform then gives this function its own"
            " queue.",
            "The function has no queue and no pod. Invocations of the requestID go to the other function.",
        ),
        ReadyReason.WORKER_NOT_RECORDED: ReasonGuide(
            "Progressing",
            "The unit has `serverless.workerOf`, but the FunctionQueue of the function does not contain the UID of the unit. There are two"
            " possible causes: the activator did not create the unit, or the function was deleted.",
            f"{NO_ACTION} The activator deletes the unit. Only the activator creates workers.",
            "The controller changes no child object. A new unit gets no pod. If the function was deleted, an existing pod finishes its"
            " invocations.",
        ),
        ReadyReason.SCALED_TO_ZERO: ReasonGuide(
            "Empty",
            "The unit has `running: false`, and its pod is deleted.",
            f"{NO_ACTION} To start the unit, send `POST …/start` to the API or set `running: true`.",
            "The Service of the unit stays. The storages of the unit stay attached to the unit.",
        ),
        ReadyReason.POD_STARTUP_FAILED: ReasonGuide(
            "Failed",
            "The Deployment of the unit exists, but its pod does not become ready. The message contains the cause. For example, the"
            " image cannot be pulled, the container exits, no node has enough resources, or a quota or policy of the namespace rejects"
            " the pod.",
            STARTUP_REMEDY,
            STARTUP_RETRIED,
        ),
        ReadyReason.POD_STATUS_SYNC_FAILED: ReasonGuide(
            "Progressing",
            "The Deployment of the unit reports that its pod is not available, and the controller manager cannot list or watch pods. So"
            f" the controller manager does not know whether the pod is starting or failing. {POD_WATCH_CAUSES}",
            POD_WATCH_REMEDY,
            "Pods that run keep running. New units that consume stock or mount storages do not start, because the controller cannot"
            " check whether another pod still uses the storage or the GPUs of the stock unit. The controller detaches no storage. The"
            " controller retries the watch with a backoff of at most 5 s, and reconciles the unit every 15 s.",
        ),
        ReadyReason.SERVICE_SYNC_FAILED: ReasonGuide(
            "Failed",
            SERVICE_REJECTED,
            SERVICE_REMEDY,
            "The pod of the unit runs, because the controller creates the Service after the Deployment. If the unit has no Service yet,"
            f" clients cannot reach the pod. {RETRIED}",
        ),
        ReadyReason.DEPLOYMENT_SYNC_FAILED: ReasonGuide(
            "Failed",
            DEPLOYMENT_REJECTED,
            DEPLOYMENT_REMEDY,
            "An existing pod keeps running with the previous spec. A new unit has a NetworkPolicy, but no pod and no Service."
            f" {RETRIED} After a change of the unit, the controller retries immediately.",
        ),
        ReadyReason.NETWORK_POLICY_SYNC_FAILED: ReasonGuide(
            "Failed",
            "The API server rejected the NetworkPolicy of the unit. The message contains the error of the API server. The controller"
            " creates the Deployment only after the NetworkPolicy exists.",
            "Correct the cause that the message contains.",
            f"An existing pod keeps running with the previous spec. A new unit has no pod. {RETRIED}",
        ),
        ReadyReason.NAME_TAKEN: _name_taken("unit", "NetworkPolicy, Deployment, Service"),
        ReadyReason.UNIT_PROGRESSING: ReasonGuide(
            "Progressing",
            "The pod of the unit is starting or stopping.",
            "Wait. If the reason does not change, look at the pod: `kubectl describe pods -l runtime.lokiwager.io/unit=<name>`.",
        ),
        ReadyReason.UNIT_READY: ReasonGuide("Ready", "The pod of the unit is ready.", NO_ACTION),
        ReadyReason.STOCK_RELEASING: ReasonGuide(
            "Progressing",
            "The scheduler has found no free GPUs for the pod of the unit, and the stock unit that the handoff has consumed, its Deployment"
            " or its pod still exists. So the pod of the stock unit may still use the GPUs.",
            "Wait. The deletion takes about a second. After 60 s at the latest, the unit gets a pod that may preempt other stock."
            " If the objects of the stock unit still exist then, check their finalizers and the node of the pod.",
        ),
        ReadyReason.STORAGE_NOT_READY: ReasonGuide(
            "Progressing",
            "A storage in `spec.storageMounts` is not attached to this unit yet, or the volume of the storage is not ready, or a pod of"
            " another unit still mounts the storage. Such a pod usually belongs to a deleted unit and is terminating. Pods of two units must"
            " never mount the same storage.",
            "Wait for the storage. `kubectl describe gpustorage <name>` shows the cause of the delay. If a pod of another unit still"
            " mounts the storage, wait until this pod has terminated. A pod terminates within its `terminationGracePeriodSeconds`. The"
            " default is 30 s for a unit and 315 s for a worker. If the pod needs more time, check whether its node can be reached and whether the pod has a finalizer. Make sure"
            " that the containers of the pod have stopped. Then remove the finalizer, and delete the pod with `--force`. For a dead"
            " node, see [failure semantics](../failure-semantics.md#when-a-node-dies). The unit starts after the pod is deleted.",
            "A new unit does not start. If a user added the mount to a running unit, the unit keeps running without the mount.",
        ),
        ReadyReason.STORAGE_MOUNT_INVALID: ReasonGuide(
            "Failed",
            "A storage in `spec.storageMounts` does not exist in the namespace of the unit, is being deleted, or is attached to another"
            " unit (`spec.attachedTo` of the storage).",
            "If the storage does not exist, create the storage, or remove the storage from `spec.storageMounts` of this unit. If the"
            " storage is being deleted, remove the storage from `spec.storageMounts` of this unit. If the storage is attached to"
            " another unit, delete the other unit, or remove the storage from `spec.storageMounts` of the other unit. It is not enough"
            " to stop the other unit, because storages stay attached to a stopped unit. Do not edit `spec.attachedTo`.",
            "A new unit does not start. A running unit keeps running without the storage. If the storage is attached to another unit,"
            " the controller detaches the storage when the other unit no longer lists the storage and no pod mounts the storage. Then"
            " the controller attaches the storage to the oldest unit that lists the storage, and starts this unit. These steps"
            " take a few seconds.",
        ),
    }
)

STORAGE_REASONS: Mapping[ReadyReason, ReasonGuide] = MappingProxyType(
    {
        ReadyReason.INVALID_SPEC: ReasonGuide(
            "Failed",
            "The spec of the storage has errors that the CRD does not reject. The message names each wrong field. For example,"
            " `spec.size` is not a quantity.",
            CORRECT_FIELDS,
            "The controller does not create or change the PersistentVolumeClaim. New units cannot mount the storage. Pods that mount"
            " the storage keep running.",
        ),
        ReadyReason.NAME_TAKEN: ReasonGuide(
            "Failed",
            "A PersistentVolumeClaim (PVC) with the name of the storage exists and does not belong to this storage. The controller does"
            " not overwrite or delete the existing PVC.",
            "If the storage must use the data of the existing PVC, set the label `runtime.lokiwager.io/storage=<name>` on the PVC. If"
            " the existing PVC is needed for another purpose, create the storage with another name. If the existing PVC is not needed,"
            " delete the PVC.",
            "Units cannot mount the storage. The controller checks every 15 s. When the PVC has the label or is deleted, the storage"
            " recovers without another action.",
        ),
        ReadyReason.CLAIM_PENDING: ReasonGuide(
            "Pending",
            "The PersistentVolumeClaim has no volume yet, or the StorageClass does not exist, or the PersistentVolumeClaim of a"
            " deleted GPUStorage with the same name still exists.",
            "Wait until the provisioner has created the volume. If the message names a missing StorageClass, create the StorageClass,"
            " or create another storage with an existing class. If the message contains an error of the provisioner, correct the cause of this"
            " error. If the PersistentVolumeClaim of a deleted GPUStorage still exists, wait until this PersistentVolumeClaim is deleted.",
            f"Units that mount the storage do not start. {CHECKED}",
        ),
        ReadyReason.WAIT_FOR_FIRST_CONSUMER: ReasonGuide(
            "Pending",
            "The StorageClass has the binding mode WaitForFirstConsumer. With this mode, the provisioner creates the volume for the"
            " first pod that mounts the storage.",
            f"{NO_ACTION} The provisioner creates the volume when a unit mounts the storage.",
        ),
        ReadyReason.CLAIM_LOST: ReasonGuide(
            "Failed",
            "Another client deleted the PersistentVolumeClaim (PVC) of the storage, or the deletion of the PVC is in progress, or the"
            " PersistentVolume of the PVC does not exist any more. The controller does not create a new PVC, because users would find"
            " an empty volume instead of their data.",
            "If the deletion of the PVC is in progress, copy the data now: the data is lost when the last pod that mounts the PVC"
            " terminates. If the PVC is deleted, restore the PVC from a backup with the same name and namespace, and with the label"
            " `runtime.lokiwager.io/storage=<name>`. If the PersistentVolume does not exist, restore the PersistentVolume. If you do"
            " not need the data, delete the GPUStorage and create it again. The new volume is empty.",
            f"New pods cannot mount the storage. Running pods that mount the PVC keep running. {CHECKED}",
        ),
        ReadyReason.CLAIM_SYNC_FAILED: ReasonGuide(
            "Failed",
            "There are two possible causes. First, the API server rejected the PersistentVolumeClaim (PVC). Second, the storage adopted a"
            " PVC whose storage class is not `spec.storageClassName`, or that does not have the access mode ReadWriteOnce. Kubernetes"
            " does not allow changes of these two fields of a PVC.",
            "If the API server rejected the PVC, correct the cause that the message contains. If the storage adopted a PVC with another"
            " storage class, replace the GPUStorage: (1) Remove the storage from the `storageMounts` of all units, or delete the units, because the deletion"
            " of the GPUStorage waits for these units. (2) Remove the label `runtime.lokiwager.io/storage` and the annotation"
            " `runtime.lokiwager.io/storage-uid` from the PVC, in one patch. **Without this step, the next step deletes the PVC and"
            " its data.** (3) Delete the GPUStorage. (4) Create a GPUStorage with the same name and with the storage class of the PVC."
            " (5) Set the label `runtime.lokiwager.io/storage=<name>` on the PVC again. If the adopted PVC does not have the access mode"
            " ReadWriteOnce, create a GPUStorage with another name and copy the data.",
            f"The PVC and the data do not change. Pods that mount the PVC keep running. {CHECKED}",
        ),
        ReadyReason.RESIZE_PENDING: ReasonGuide(
            "Ready",
            "The volume is being expanded.",
            "Wait. If the message says that the resize of the file system is pending, start a unit that mounts the storage. Kubernetes"
            " resizes the file system when a pod mounts the volume.",
            "Units can mount the storage, and pods keep running.",
        ),
        ReadyReason.RESIZE_REFUSED: ReasonGuide(
            "Ready",
            "`spec.size` was increased, but the volume cannot be expanded: the StorageClass does not exist, the StorageClass does not"
            " have `allowVolumeExpansion: true`, or the API server rejected the expansion.",
            "If the StorageClass does not exist, create the StorageClass with `allowVolumeExpansion: true`. If the StorageClass does"
            " not have `allowVolumeExpansion: true`, add this field. If the API server rejected the expansion, correct"
            " the cause that the message contains. If the volume cannot be expanded at all, create another storage"
            " and copy the data. You cannot set `spec.size` back, because the CRD rejects a smaller size.",
            "The data does not change, units can mount the storage, and pods keep running. The controller reconciles the storage"
            " at most 15 s after a change of the StorageClass.",
        ),
        ReadyReason.STORAGE_READY: ReasonGuide(
            "Ready", "The PersistentVolumeClaim of the storage is bound to a volume.", NO_ACTION
        ),
        ReadyReason.DELETING: ReasonGuide(
            "the phase that the storage had before the deletion",
            "The storage is being deleted. The finalizer waits until no unit and no pod mounts the storage, and then until the"
            " PersistentVolumeClaim is deleted. The message names the unit, the pod or the"
            " PersistentVolumeClaim that still exists.",
            "If the message names a unit, delete the unit, or remove the storage from `spec.storageMounts` of the unit. If the message"
            " names a pod or the PersistentVolumeClaim, wait until this object is deleted. Do not remove the finalizer of the storage yourself,"
            " because the finalizer protects mounted data.",
            "Pods that mount the storage keep running. The data exists until these pods have terminated.",
        ),
    }
)

POOL_REASONS: Mapping[ReadyReason, ReasonGuide] = MappingProxyType(
    {
        ReadyReason.INVALID_SPEC: ReasonGuide(
            "Failed",
            "The spec of the pool has errors that the CRD does not reject. The message names each wrong field. For example, `spec.memory`"
            " is not a quantity.",
            CORRECT_FIELDS,
            "The controller changes no child object. Existing pods keep running with the previous spec. For a new pool, the controller"
            " creates no child objects.",
        ),
        ReadyReason.SCALED_TO_ZERO: ReasonGuide(
            "Empty",
            "The pool has `replicas: 0`, and all its pods are deleted.",
            f"{NO_ACTION} To get pods, raise `replicas` of the pool.",
            "The Deployment and the Service of the pool stay.",
        ),
        ReadyReason.POD_STARTUP_FAILED: ReasonGuide(
            "Failed",
            "The Deployment of the pool exists, but at least one of its pods does not become ready. The message contains the cause. For"
            " example, the image cannot be pulled, the container exits, no node has enough resources, or a quota or policy of the"
            " namespace rejects the pod.",
            STARTUP_REMEDY,
            STARTUP_RETRIED,
        ),
        ReadyReason.POD_STATUS_SYNC_FAILED: ReasonGuide(
            "Progressing",
            "The Deployment of the pool reports that too few of its pods are available, and the controller manager cannot list or watch"
            " pods. So the controller manager does not know whether the missing pods are starting or failing."
            f" {POD_WATCH_CAUSES}",
            POD_WATCH_REMEDY,
            "Pods that run keep running. The controller retries the watch with a backoff of at most 5 s, and reconciles the pool every"
            " 15 s.",
        ),
        ReadyReason.SERVICE_SYNC_FAILED: ReasonGuide(
            "Failed",
            SERVICE_REJECTED,
            SERVICE_REMEDY,
            "The pods of the pool run, because the controller creates the Service after the Deployment. If the pool has no Service yet,"
            f" clients cannot reach the pods. {RETRIED}",
        ),
        ReadyReason.DEPLOYMENT_SYNC_FAILED: ReasonGuide(
            "Failed",
            DEPLOYMENT_REJECTED,
            DEPLOYMENT_REMEDY,
            f"Existing pods keep running with the previous spec. A new pool has no pods and no Service. {RETRIED} After a change of the"
            " pool, the controller retries immediately.",
        ),
        ReadyReason.NAME_TAKEN: _name_taken("pool", "Deployment, Service"),
        ReadyReason.DEPLOYMENT_PROGRESSING: ReasonGuide(
            "Progressing",
            "Some replicas of the pool are not available yet.",
            "Wait. If the reason does not change, look at the pods: `kubectl describe pods -l runtime.lokiwager.io/pool=<name>`.",
        ),
        ReadyReason.DEPLOYMENT_READY: ReasonGuide("Ready", "All replicas of the pool are available.", NO_ACTION),
    }
)

REASONS: Mapping[str, Mapping[ReadyReason, ReasonGuide]] = MappingProxyType(
    {UNIT: UNIT_REASONS, STORAGE: STORAGE_REASONS, POOL: POOL_REASONS}
)
"""The guide of each reason, by the kind that can have the reason."""

EVENTS: Mapping[str, tuple[str, str, str, str]] = MappingProxyType(
    {
        "WorkerFailed": (
            "GPUUnit (the function)",
            "Warning",
            (
                "A worker of the function is unhealthy: the worker has sent no event for `scaling.workerLivenessTimeoutSeconds`. If the"
                " unit of the worker is in phase Failed, the limit is `scaling.failedWorkerGraceSeconds`. Or the worker drained itself: within"
                " a minute after its start, it began to drain without a request. The activator replaces the worker."
            ),
            "Read the message of the Event and the log of the worker's pod. Then correct the image or the handler of the function.",
        ),
        "WorkersLimited": (
            "GPUUnit (the function)",
            "Warning",
            (
                "`maxWorkers` of the function is greater than the setting `scaling.maxWorkersPerFunction` of the activator. The"
                " function gets only the number of workers in the setting."
            ),
            "Lower `maxWorkers`, or raise the setting.",
        ),
        "StopsSoon": (
            "GPUUnit",
            "Normal",
            (
                "The platform will stop the unit at the time in the message, because of `maxDurationSeconds` or"
                " `stopUnlessExtendedSeconds`. The setting `lifetimes.announcementSeconds` decides how early the controller records the"
                " Event."
            ),
            (
                "No action is necessary if the unit may stop. Otherwise, raise or remove `maxDurationSeconds`. If the unit has"
                " `stopUnlessExtendedSeconds`, send `POST …/extend` to the API."
            ),
        ),
        "DeletesSoon": (
            "GPUUnit",
            "Normal",
            (
                "The platform will delete the unit at the time in the message, because of `deleteAfterSeconds`. The setting"
                " `lifetimes.announcementSeconds` decides how early the controller records the Event."
            ),
            "No action is necessary if the platform may delete the unit. Otherwise, raise or remove `deleteAfterSeconds`.",
        ),
    }
)
"""Object, type, cause and remedy of each Event whose reason is not a reason of the Ready condition."""
