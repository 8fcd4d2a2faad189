"""The rules of prepared pods: which pods a handoff may take, and what its claim changes. Pure.

    free ─claim (runtime API)─▶ claimed ─labels of the unit, no owner (controller manager)─▶ unit
                                  └─operation does not continue─▶ deleted

A claimed pod still belongs to its pool until the unit takes it. So the pool starts another pod only after the unit has
the pod, and the start of the other pod does not slow down the handoff. A claimed pod is never free again.
"""

from collections.abc import Iterable, Mapping

from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.operation import Operation
from gpu_runtime.contract.crd.stock_pool import StockPool
from gpu_runtime.contract.crd.well_known import Annotation, Label
from gpu_runtime.contract.prepared_units import prepared_unit
from gpu_runtime.contract.stock_grades import prepared_for
from gpu_runtime.kube.builtin_kinds import Pod
from gpu_runtime.kube.meta import Manifest

POD_DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
"""Annotation of Kubernetes. A ReplicaSet with too many pods deletes the ones with the lowest cost first."""

MAX_DELETION_COST = str(2**31 - 1)


def takeable_pods(pool: StockPool, pods: Iterable[Pod]) -> list[Pod]:
    """Return the pods that a handoff may claim. A pod of an earlier template of the pool has another hash."""
    current_hash = prepared_for(prepared_unit(pool.spec))
    return [
        pod for pod in pods if is_free(pod) and pod.metadata.annotations.get(Annotation.PREPARED_FOR) == current_hash
    ]


def is_free(pod: Pod) -> bool:
    """Whether a handoff may claim the pod: it belongs to its pool, is Ready, is not being deleted, and no container of
    it has restarted."""
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    return (
        not is_claimed_pod(pod)
        and pod.metadata.deletion_timestamp is None
        and pod.metadata.controller_ref is not None
        and pod.is_ready
        and not any(each.restart_count for each in statuses)
    )


def is_claimed_pod(pod: Pod) -> bool:
    return Annotation.CLAIMED_BY in pod.metadata.annotations


def awaits_unit(pod: Pod) -> bool:
    """Whether a handoff has claimed the pod, and no ReplicaSet of a unit owns it yet."""
    return is_claimed_pod(pod) and (Label.POOL_UID in pod.metadata.labels or pod.metadata.controller_ref is None)


def awaits_pod(unit: GPUUnit, operation: Operation, pod: Pod) -> bool:
    """Whether the unit of a succeeded operation will adopt the pod that the operation has claimed.

    A user who can write GPUUnits can change the annotations. Then the controller manager does not take the pod.
    """
    annotations, label = unit.metadata.annotations, pod.metadata.labels.get(Label.UNIT_UID)
    expected = {
        Annotation.OPERATION_UID: operation.metadata.uid,
        Annotation.SOURCE_STOCK_UID: pod.metadata.uid,
        Annotation.SOURCE_STOCK_NAME: pod.metadata.name,
    }
    return (
        unit.metadata.uid == operation.status.target_uid
        and expected.items() <= annotations.items()
        and bool(annotations.get(Annotation.SOURCE_STOCK_POOL))
        and label in (None, unit.metadata.uid)
    )


def claim_patch(operation: Operation) -> Manifest:
    """Return the patch that claims the pod. If the pool must delete pods, Kubernetes deletes unclaimed ones first.

    The labels already select the pod for the unit, so that the first EndpointSlice of the unit's Service contains it.
    Kubernetes may take a second to change an EndpointSlice that it has just created.
    """
    annotations = {
        Annotation.CLAIMED_BY: operation.spec.operation_id,
        Annotation.OPERATION_UID: operation.metadata.uid,
        POD_DELETION_COST: MAX_DELETION_COST,
    }
    labels = claim_labels(operation.target_key.name, operation.metadata.uid)
    return {"metadata": {"labels": labels, "annotations": annotations}}


def claim_labels(unit_name: str, operation_uid: str) -> dict[str, str]:
    """Return the labels by which the Service and the NetworkPolicy of a unit from a prepared pod select its pods.

    Two operations can claim pods for units with the same name, and only one of them creates its unit. The UID of the
    operation ensures that the clients of this unit do not reach the pod that the other operation has claimed.
    """
    return {Label.UNIT: unit_name, Label.OPERATION_UID: operation_uid}


def unit_patch(labels: Mapping[str, str]) -> Manifest:
    """Return the patch that takes the pod from its pool and labels it as the pod of a unit.

    The ReplicaSet of the pool then starts another pod.
    """
    removed = {Label.POOL: None, Label.POOL_UID: None, Label.PREPARED_BY: None}
    annotations = {POD_DELETION_COST: None}
    return {"metadata": {"labels": {**removed, **labels}, "ownerReferences": None, "annotations": annotations}}
