"""Builds the Deployment of a unit. It has one pod, which uses the unit's GPUs."""

from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS
from gpu_runtime.contract.crd.template import Template
from gpu_runtime.contract.crd.well_known import (
    STOCK_PRIORITY_CLASS,
    Label,
    UnitRole,
    unit_labels,
)
from gpu_runtime.controller_manager.gpu_unit.children.sidecar import pod_metadata, with_sidecar
from gpu_runtime.controller_manager.gpu_unit.observe import ObservedUnit
from gpu_runtime.controller_manager.gpu_unit.stock_release import is_replaced, may_preempt, priority_class
from gpu_runtime.controller_manager.workload.active_pod import active_pod_spec
from gpu_runtime.controller_manager.workload.drift import child_manifest
from gpu_runtime.controller_manager.workload.pod_template import (
    RESTRICTED_POD_SECURITY_CONTEXT,
    RESTRICTED_SECURITY_CONTEXT,
    STOCK_TERMINATION_GRACE_SECONDS,
    main_container,
    resources,
)
from gpu_runtime.kube.meta import Manifest

STOCK_TEMPLATE = Template(command=("python3", "-m", "gpu_runtime.stock_process"))


def deployment(observed: ObservedUnit) -> Manifest:
    metadata, spec = observed.unit.metadata, observed.unit.spec
    labels = unit_labels(metadata.name, spec.spec_name, observed.role)
    child_spec: Manifest = {
        "replicas": 1 if spec.running else 0,
        "strategy": _strategy(observed),
        "revisionHistoryLimit": 1,
        "selector": {"matchLabels": {Label.UNIT: metadata.name}},
        "template": _pod_template(observed, labels | observed.pod_selector | {Label.UNIT_UID: metadata.uid}),
    }
    return child_manifest(observed.unit, GPU_UNITS, metadata.name, labels, child_spec)


def _strategy(observed: ObservedUnit) -> Manifest:
    """Return how a changed pod template replaces the pod.

    `Recreate` waits until the old pod has ended. Otherwise the new pod would preempt stock to get GPUs, although the
    old pod releases enough. But the pod of a lost node ends only when its Node is deleted. So if the pod that replaces
    it must preempt, the unit does not wait for the old pod. A unit with storages waits, because two of its pods must
    not mount a storage at the same time.
    """
    if may_preempt(observed) and is_replaced(observed) and not observed.unit.spec.storage_mounts:
        return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    return {"type": "Recreate"}


def _pod_template(observed: ObservedUnit, labels: dict[str, str]) -> Manifest:
    if observed.role is UnitRole.STOCK:
        return {"metadata": {"labels": labels}, "spec": _stock_pod_spec(observed)}
    return {"metadata": pod_metadata(labels, observed), "spec": with_sidecar(_active_pod_spec(observed), observed)}


def _stock_pod_spec(observed: ObservedUnit) -> Manifest:
    main = main_container(observed.settings.images.stock, STOCK_TEMPLATE, _resources(observed))
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "priorityClassName": STOCK_PRIORITY_CLASS,
        "terminationGracePeriodSeconds": STOCK_TERMINATION_GRACE_SECONDS,
        "securityContext": RESTRICTED_POD_SECURITY_CONTEXT,
        "containers": [main | {"securityContext": RESTRICTED_SECURITY_CONTEXT}],
    }


def _active_pod_spec(observed: ObservedUnit) -> Manifest:
    unit, settings = observed.unit.spec, observed.settings.pods
    return active_pod_spec(unit, settings, priority_class(observed), _affinity(observed))


def _resources(observed: ObservedUnit) -> Manifest:
    return resources(observed.unit.spec, observed.settings.pods.default_ephemeral_storage)


def _affinity(observed: ObservedUnit) -> Manifest:
    """Prefer the node of the source stock unit, because its GPUs become free there."""
    stock = observed.source_stock
    if stock is None or not stock.node:
        return {}
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": [stock.node]}
    preference = {"weight": 100, "preference": {"matchExpressions": [expression]}}
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preference]}}
