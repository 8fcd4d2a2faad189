"""The Deployment of a unit: one pod that holds the unit's GPUs."""

from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS
from gpu_runtime.contract.crd.template import Template
from gpu_runtime.contract.crd.well_known import Label, UnitRole, unit_labels
from gpu_runtime.controller_manager.gpu_unit.children.sidecar import pod_metadata, with_sidecar
from gpu_runtime.controller_manager.gpu_unit.observe import ObservedUnit
from gpu_runtime.controller_manager.workload.drift import child_manifest
from gpu_runtime.controller_manager.workload.pod_template import (
    ACTIVE_PRIORITY_CLASS,
    RESTRICTED_POD_SECURITY_CONTEXT,
    RESTRICTED_SECURITY_CONTEXT,
    STOCK_PRIORITY_CLASS,
    STOCK_TERMINATION_GRACE_SECONDS,
    USER_SECURITY_CONTEXT,
    main_container,
    user_pod_security_context,
)
from gpu_runtime.kube.meta import Manifest

STOCK_TEMPLATE = Template(command=("python3", "-m", "gpu_runtime.stock_process"))


def deployment(seen: ObservedUnit) -> Manifest:
    metadata, spec = seen.unit.metadata, seen.unit.spec
    labels = unit_labels(metadata.name, spec.spec_name, seen.role)
    return child_manifest(
        seen.unit,
        GPU_UNITS,
        metadata.name,
        labels,
        {
            "replicas": 1 if spec.running else 0,
            # A second pod beside the first would wait for the first one's GPUs for ever.
            "strategy": {"type": "Recreate"},
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": {Label.UNIT: metadata.name}},
            "template": _stock_template(seen, labels)
            if seen.role is UnitRole.STOCK
            else _active_template(seen, labels),
        },
    )


def _stock_template(seen: ObservedUnit, labels: dict[str, str]) -> Manifest:
    return {"metadata": {"labels": labels | _uid_label(seen)}, "spec": _stock_pod_spec(seen)}


def _active_template(seen: ObservedUnit, labels: dict[str, str]) -> Manifest:
    return {
        "metadata": pod_metadata(labels | _uid_label(seen), seen),
        "spec": with_sidecar(_active_pod_spec(seen), seen),
    }


def _uid_label(seen: ObservedUnit) -> dict[str, str]:
    return {Label.UNIT_UID: seen.unit.metadata.uid}


def _stock_pod_spec(seen: ObservedUnit) -> Manifest:
    spec = seen.unit.spec
    main = main_container(seen.settings.images.stock, STOCK_TEMPLATE, spec.memory, spec.gpu)
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "priorityClassName": STOCK_PRIORITY_CLASS,
        "terminationGracePeriodSeconds": STOCK_TERMINATION_GRACE_SECONDS,
        "securityContext": RESTRICTED_POD_SECURITY_CONTEXT,
        "containers": [main | {"securityContext": RESTRICTED_SECURITY_CONTEXT}],
    }


def _active_pod_spec(seen: ObservedUnit) -> Manifest:
    spec = seen.unit.spec
    main = main_container(spec.image, spec.template, spec.memory, spec.gpu) | {"securityContext": USER_SECURITY_CONTEXT}
    mounts = [
        {"name": each.name, "mountPath": each.mount_path, "readOnly": each.read_only} for each in spec.storage_mounts
    ]
    volumes = [{"name": each.name, "persistentVolumeClaim": {"claimName": each.name}} for each in spec.storage_mounts]
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "priorityClassName": ACTIVE_PRIORITY_CLASS,
        "securityContext": user_pod_security_context(seen.settings.pod_security.require_non_root),
        "initContainers": [],
        "containers": [main | {"volumeMounts": mounts}],
        "volumes": volumes,
        "affinity": _affinity(seen),
    }


def _affinity(seen: ObservedUnit) -> Manifest:
    """Preferably where the stock was: its GPUs are free there, so nobody else's stock must give way."""
    stock = seen.source_stock
    if stock is None or not stock.node:
        return {}
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": [stock.node]}
    preference = {"weight": 100, "preference": {"matchExpressions": [expression]}}
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preference]}}
