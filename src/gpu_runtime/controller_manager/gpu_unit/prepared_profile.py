"""Finds the pod profile of a prepared pod. No I/O.

A pool keeps the profile of its running pods, so its pods can have an older profile than new units. A unit that adopts
such a pod gets the profile of the pod, and records it. Otherwise the controller manager would replace the running pod.
"""

from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.contract.validation import normalize_unit
from gpu_runtime.controller_manager.gpu_unit.observe import ObservedUnit
from gpu_runtime.controller_manager.workload.active_pod import prepared_pod_hash
from gpu_runtime.controller_manager.workload.pod_profile import PodProfile, find_profile
from gpu_runtime.kube.builtin_kinds import Pod


def fitting_profile(observed: ObservedUnit, pod: Pod) -> PodProfile | None:
    """Return the profile of the pod. Return None if the unit, with this profile, would get another pod."""
    annotations = pod.metadata.annotations
    profile = find_profile(annotations.get(Annotation.POD_PROFILE, ""))
    if profile is None or pod.metadata.deletion_timestamp is not None:
        return None
    unit_hash = prepared_pod_hash(normalize_unit(observed.unit.spec), observed.settings.pods, profile)
    return profile if annotations.get(Annotation.POD_HASH) == unit_hash else None
