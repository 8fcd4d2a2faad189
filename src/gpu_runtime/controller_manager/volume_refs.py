"""Keys of the volumes that units, pods and Deployments mount. No I/O.

A GPUStorage and its PersistentVolumeClaim have the same namespace and name, so one key identifies both.
"""

from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.controller_manager.unstructured import RawDeployment
from gpu_runtime.kube.builtin_kinds import Pod
from gpu_runtime.kube.meta import ObjectKey


def unit_storage_keys(unit: GPUUnit) -> list[ObjectKey]:
    return [ObjectKey(unit.metadata.namespace, mount.name) for mount in unit.spec.storage_mounts]


def pod_pvc_keys(pod: Pod) -> list[ObjectKey]:
    sources = (volume.persistent_volume_claim for volume in pod.spec.volumes)
    return [ObjectKey(pod.metadata.namespace, source.claim_name) for source in sources if source]


def deployment_pvc_keys(deployment: RawDeployment) -> set[ObjectKey]:
    """Return the PersistentVolumeClaims in the pod template of a Deployment."""
    volumes = deployment.spec.get("template", {}).get("spec", {}).get("volumes") or ()
    sources = (volume.get("persistentVolumeClaim") for volume in volumes)
    return {ObjectKey(deployment.metadata.namespace, source["claimName"]) for source in sources if source}
