"""What units and their children mount, as the keys of storages and claims, which share their names. Pure."""

from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.controller_manager.workload.unstructured import RawDeployment
from gpu_runtime.kube.builtin_kinds import Pod
from gpu_runtime.kube.meta import ObjectKey


def unit_storage_keys(unit: GPUUnit) -> list[ObjectKey]:
    return [ObjectKey(unit.metadata.namespace, mount.name) for mount in unit.spec.storage_mounts]


def pod_pvc_keys(pod: Pod) -> list[ObjectKey]:
    claims = (each.persistent_volume_claim for each in pod.spec.volumes)
    return [ObjectKey(pod.metadata.namespace, claim.claim_name) for claim in claims if claim]


def deployment_pvc_keys(deployment: RawDeployment) -> set[ObjectKey]:
    """The claims that its pods mount."""
    volumes = deployment.spec.get("template", {}).get("spec", {}).get("volumes") or ()
    sources = (each.get("persistentVolumeClaim") for each in volumes)
    return {ObjectKey(deployment.metadata.namespace, source["claimName"]) for source in sources if source}
