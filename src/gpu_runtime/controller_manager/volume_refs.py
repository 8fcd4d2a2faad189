"""What units and their children mount, as the keys of storages and claims, which share their names. Pure."""

from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.controller_manager.workload.unstructured import Deployment
from gpu_runtime.kube.builtin_kinds import Pod
from gpu_runtime.kube.meta import Key


def storages_of(unit: GPUUnit) -> list[Key]:
    return [Key(unit.metadata.namespace, mount.name) for mount in unit.spec.storage_mounts]


def claims_of_pod(pod: Pod) -> list[Key]:
    claims = (each.persistent_volume_claim for each in pod.spec.volumes)
    return [Key(pod.metadata.namespace, claim.claim_name) for claim in claims if claim]


def claims_of_deployment(deployment: Deployment) -> set[Key]:
    """The claims that its pods mount."""
    volumes = deployment.spec.get("template", {}).get("spec", {}).get("volumes") or ()
    sources = (each.get("persistentVolumeClaim") for each in volumes)
    return {Key(deployment.metadata.namespace, source["claimName"]) for source in sources if source}
