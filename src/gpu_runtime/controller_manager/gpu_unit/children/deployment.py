"""Builds the Deployment of a unit. It has one pod, which uses the unit's GPUs."""

from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS
from gpu_runtime.contract.crd.template import Template
from gpu_runtime.contract.crd.well_known import (
    STOCK_PRIORITY_CLASS,
    Annotation,
    Label,
    UnitRole,
    unit_labels,
)
from gpu_runtime.controller_manager.gpu_unit.children.sidecar import pod_metadata, with_sidecar
from gpu_runtime.controller_manager.gpu_unit.observe import ObservedUnit
from gpu_runtime.controller_manager.gpu_unit.prepared_profile import fitting_profile
from gpu_runtime.controller_manager.gpu_unit.stock_release import is_replaced, may_preempt, priority_class
from gpu_runtime.controller_manager.workload.active_pod import active_pod_spec
from gpu_runtime.controller_manager.workload.drift import child_manifest, matches_template
from gpu_runtime.controller_manager.workload.pod_profile import PodBuild, choose_build, latest_profile
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
    labels, build = unit_labels(metadata.name, spec.spec_name, observed.role), unit_build(observed)
    child_spec: Manifest = {
        "replicas": 1 if spec.running else 0,
        "strategy": _strategy(observed),
        "revisionHistoryLimit": 1,
        "selector": {"matchLabels": {Label.UNIT: metadata.name}},
        "template": _pod_template(observed, build),
    }
    manifest = child_manifest(observed.unit, GPU_UNITS, metadata.name, labels, child_spec)
    manifest["metadata"]["annotations"][Annotation.POD_PROFILE] = str(build.profile.version)
    return manifest


def unit_build(observed: ObservedUnit) -> PodBuild:
    """Return the pod profile and the image of the platform with which the pod of the unit is built."""
    metadata, record, prepared = observed.unit.metadata, observed.unit.status.pod, observed.prepared_pod
    if record is None and prepared is not None and (profile := fitting_profile(observed, prepared)) is not None:
        return PodBuild(profile)  # the pod runs already, so the unit gets the profile of the pod
    return choose_build(
        PodBuild(latest_profile(), _platform_image(observed)),
        record,
        metadata,
        wants_pods=observed.unit.spec.running,
        matches_live=lambda build: matches_template(observed.deployment, _pod_template(observed, build)),
    )


def _platform_image(observed: ObservedUnit) -> str:
    images = observed.settings.images
    if observed.role is UnitRole.STOCK:
        return images.stock
    return (images.sidecar or images.stock) if observed.unit.spec.serves_function else ""


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


def _pod_template(observed: ObservedUnit, build: PodBuild) -> Manifest:
    metadata, spec = observed.unit.metadata, observed.unit.spec
    labels = unit_labels(metadata.name, spec.spec_name, observed.role) | observed.pod_selector
    labels |= {Label.UNIT_UID: metadata.uid}
    if observed.role is UnitRole.STOCK:
        return {"metadata": {"labels": labels}, "spec": _stock_pod_spec(observed, build)}
    pod = _active_pod_spec(observed, build)
    return {"metadata": pod_metadata(labels, observed), "spec": with_sidecar(pod, observed, build)}


def _stock_pod_spec(observed: ObservedUnit, build: PodBuild) -> Manifest:
    main = main_container(build.platform_image, STOCK_TEMPLATE, _resources(observed))
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "priorityClassName": STOCK_PRIORITY_CLASS,
        "terminationGracePeriodSeconds": STOCK_TERMINATION_GRACE_SECONDS,
        "securityContext": RESTRICTED_POD_SECURITY_CONTEXT,
        "containers": [main | {"securityContext": RESTRICTED_SECURITY_CONTEXT}],
    }


def _active_pod_spec(observed: ObservedUnit, build: PodBuild) -> Manifest:
    unit, settings = observed.unit.spec, observed.settings.pods
    return active_pod_spec(unit, settings, build.profile, priority_class(observed), _affinity(observed))


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
