"""Builds the pod of an active unit, without the worker sidecar, and the pods of adoptable pools. No I/O."""

import hashlib

import msgspec

from gpu_runtime.contract.crd.gpu_unit import GPUUnitSpec
from gpu_runtime.contract.crd.well_known import HANDOFF_PRIORITY_CLASS
from gpu_runtime.controller_manager.settings import PodSettings
from gpu_runtime.controller_manager.workload.container_probes import container_probes
from gpu_runtime.controller_manager.workload.pod_profile import PodProfile
from gpu_runtime.controller_manager.workload.pod_template import (
    DEFAULT_GRACE_SECONDS,
    init_containers,
    template_volumes,
    user_container,
    user_pod_security_context,
)
from gpu_runtime.kube.meta import Manifest


def active_pod_spec(
    spec: GPUUnitSpec, settings: PodSettings, profile: PodProfile, priority_class: str, affinity: Manifest
) -> Manifest:
    template = spec.template
    volumes, mounts = template_volumes(template)
    volumes += [{"name": each.name, "persistentVolumeClaim": {"claimName": each.name}} for each in spec.storage_mounts]
    mounts += [
        {"name": each.name, "mountPath": each.mount_path, "readOnly": each.read_only} for each in spec.storage_mounts
    ]
    main = user_container(spec.image, template, spec, settings.default_ephemeral_storage, profile)
    main |= {"volumeMounts": mounts}
    init = init_containers(main, template)
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "priorityClassName": priority_class,
        "terminationGracePeriodSeconds": template.termination_grace_period_seconds or DEFAULT_GRACE_SECONDS,
        "securityContext": user_pod_security_context(template, settings.require_non_root, profile),
        "imagePullSecrets": [{"name": each} for each in template.image_pull_secrets],
        "initContainers": init,
        "containers": [main | container_probes(spec)],
        "volumes": volumes,
        "affinity": affinity,
    }


def prepared_pod_spec(spec: GPUUnitSpec, settings: PodSettings, profile: PodProfile) -> Manifest:
    """Return the pod of a unit before its name and its node are known. It does not preempt stock to get its GPUs."""
    return active_pod_spec(spec, settings, profile, HANDOFF_PRIORITY_CLASS, {})


def prepared_pod_hash(spec: GPUUnitSpec, settings: PodSettings, profile: PodProfile) -> str:
    """Return a hash that is equal for two units if their prepared pods are equal."""
    pod = prepared_pod_spec(spec, settings, profile)
    return hashlib.sha256(msgspec.json.encode(pod, order="sorted")).hexdigest()[:16]
