"""Parts of pod templates that units and pools share: containers, resources, security contexts, priorities. No I/O."""

from gpu_runtime.contract.crd.reservation import Reservation
from gpu_runtime.contract.crd.template import Template
from gpu_runtime.contract.crd.well_known import GPU_RESOURCE
from gpu_runtime.kube.meta import Manifest

STOCK_PRIORITY_CLASS = "gpu-runtime-stock"
ACTIVE_PRIORITY_CLASS = "gpu-runtime-active"

STOCK_TERMINATION_GRACE_SECONDS = 2
"""Termination grace period of stock pods.

The period can be short, because the stock process exits immediately on SIGTERM, unless the signal arrives while the
process starts. The period must not be 0: Kubernetes would then delete the pod object before the process has exited,
and the process would use the GPU without a pod.
"""

PLATFORM_UID = 10001

RESTRICTED_POD_SECURITY_CONTEXT: Manifest = {
    "runAsNonRoot": True,
    "runAsUser": PLATFORM_UID,
    "runAsGroup": PLATFORM_UID,
    "fsGroup": PLATFORM_UID,
    "seccompProfile": {"type": "RuntimeDefault"},
}
RESTRICTED_SECURITY_CONTEXT: Manifest = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
"""Security context of containers that run the platform's own code."""


def user_pod_security_context(require_non_root: bool) -> Manifest:
    """Return the pod security context for images of users. Many of these images run as root."""
    non_root = {"runAsNonRoot": True} if require_non_root else {}
    return {"seccompProfile": {"type": "RuntimeDefault"}} | non_root


USER_SECURITY_CONTEXT: Manifest = {"allowPrivilegeEscalation": False}


def resources(reserved: Reservation, default_ephemeral_storage: str) -> Manifest:
    """Return the resource requests and limits. What a unit reserves is its limit, too, except for CPUs.

    The default of the ephemeral storage is only a limit. Its request is 0: without a request, Kubernetes would reserve
    the limit.
    """
    amounts = {"memory": reserved.memory, GPU_RESOURCE: str(reserved.gpu or "")}
    disk, default_disk = reserved.ephemeral_storage, default_ephemeral_storage
    limits = amounts | {"cpu": reserved.cpu_limit, "ephemeral-storage": disk or default_disk}
    requests = amounts | {"cpu": reserved.cpu, "ephemeral-storage": disk or (default_disk and "0")}
    return {"limits": _without_empty(limits), "requests": _without_empty(requests)}


def _without_empty(amounts: dict[str, str]) -> Manifest:
    return {resource: amount for resource, amount in amounts.items() if amount}


def main_container(image: str, template: Template, resource_amounts: Manifest) -> Manifest:
    """Return the container `main`.

    Empty fields are set explicitly, so that drift detection finds and removes values that another client adds.
    """
    return {
        "name": "main",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        # After a crash, the kubelet copies the last log lines to the pod status. The condition reports the last line.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "command": list(template.command),
        "args": list(template.args),
        "env": [{"name": each.name, "value": each.value} for each in template.envs],
        "ports": [
            {"name": each.name, "containerPort": each.port, "protocol": each.protocol} for each in template.ports
        ],
        "resources": resource_amounts,
    }


def service_ports(template: Template) -> list[Manifest]:
    return [
        {"name": each.name, "port": each.port, "protocol": each.protocol, "targetPort": each.port}
        for each in template.ports
    ]
