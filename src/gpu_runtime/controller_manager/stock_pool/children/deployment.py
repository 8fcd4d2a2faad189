"""Builds the Deployment of a pool. It has spec.replicas pods, and each pod has its own GPUs."""

import msgspec

from gpu_runtime.contract.crd.stock_pool import STOCK_POOLS
from gpu_runtime.contract.crd.well_known import (
    STOCK_PRIORITY_CLASS,
    Annotation,
    Label,
    pool_child_name,
    pool_labels,
)
from gpu_runtime.contract.stock_grades import prepared_for
from gpu_runtime.controller_manager.stock_pool.observe import ObservedPool
from gpu_runtime.controller_manager.workload.active_pod import prepared_pod_hash, prepared_pod_spec
from gpu_runtime.controller_manager.workload.drift import child_manifest, matches_template
from gpu_runtime.controller_manager.workload.pod_profile import PodBuild, choose_build, latest_profile
from gpu_runtime.controller_manager.workload.pod_template import (
    STOCK_TERMINATION_GRACE_SECONDS,
    init_containers,
    template_volumes,
    user_container,
    user_pod_security_context,
)
from gpu_runtime.kube.meta import Manifest
from gpu_runtime.process.clock import format_timestamp

# A shell that runs as PID 1 of a container ignores SIGTERM, so the command sets a trap.
PLACEHOLDER_COMMAND = ("sh", "-c", "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done")


def deployment(observed: ObservedPool) -> Manifest:
    metadata, spec = observed.pool.metadata, observed.pool.spec
    labels, build = pool_labels(metadata.name, spec.spec_name), pool_build(observed)
    child_spec: Manifest = {
        "replicas": observed.desired_replicas,
        # No surge pod: it would wait for GPUs, which become free only when another pod of the pool terminates.
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
        "revisionHistoryLimit": 1,
        "selector": {"matchLabels": {Label.POOL: metadata.name}},
        "template": _pod_template(observed, build),
    }
    manifest = child_manifest(observed.pool, STOCK_POOLS, pool_child_name(metadata.name), labels, child_spec)
    manifest["metadata"]["annotations"][Annotation.POD_PROFILE] = str(build.profile.version)
    if observed.give_way:
        records = (f"{uid}={format_timestamp(time)}" for uid, time in sorted(observed.give_way.given_way_to.items()))
        manifest["metadata"]["annotations"][Annotation.GIVEN_WAY_TO] = ",".join(records)
    return manifest


def pool_build(observed: ObservedPool) -> PodBuild:
    """Return the pod profile and the image of the placeholder with which the pods of the pool are built."""
    placeholder = "" if observed.pool.spec.image else observed.settings.images.placeholder
    return choose_build(
        PodBuild(latest_profile(), placeholder),
        observed.pool.status.pod,
        observed.pool.metadata,
        wants_pods=observed.pool.spec.replicas > 0,
        matches_live=lambda build: matches_template(observed.deployment, _pod_template(observed, build)),
    )


def _pod_template(observed: ObservedPool, build: PodBuild) -> Manifest:
    pool, profile = observed.pool, build.profile
    labels = pool_labels(pool.metadata.name, pool.spec.spec_name) | {Label.POOL_UID: pool.metadata.uid}
    if not observed.is_adoptable:
        return {"metadata": {"labels": labels}, "spec": _warm_pod_spec(observed, build)}
    unit, settings = observed.prepared_unit, observed.settings.pods
    annotations = {
        Annotation.PREPARED_FOR: prepared_for(unit),
        Annotation.POD_HASH: prepared_pod_hash(unit, settings, profile),
        Annotation.POD_PROFILE: str(profile.version),
    }
    prepared = {Label.PREPARED: "true", Label.PREPARED_BY: pool.metadata.name}
    metadata = {"labels": labels | prepared, "annotations": annotations}
    return {"metadata": metadata, "spec": prepared_pod_spec(unit, settings, profile)}


def _warm_pod_spec(observed: ObservedPool, build: PodBuild) -> Manifest:
    spec, settings = observed.pool.spec, observed.settings
    template = spec.template
    if not template.command and not template.args:
        template = msgspec.structs.replace(template, command=PLACEHOLDER_COMMAND)
    volumes, mounts = template_volumes(template)
    image, disk = spec.image or build.platform_image, settings.pods.default_ephemeral_storage
    main = user_container(image, template, spec, disk, build.profile) | {"volumeMounts": mounts}
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "priorityClassName": STOCK_PRIORITY_CLASS,
        "terminationGracePeriodSeconds": template.termination_grace_period_seconds or STOCK_TERMINATION_GRACE_SECONDS,
        "securityContext": user_pod_security_context(template, settings.pods.require_non_root, build.profile),
        "imagePullSecrets": [{"name": each} for each in template.image_pull_secrets],
        "initContainers": init_containers(main, template),
        "containers": [main],
        "volumes": volumes,
    }
