"""Parts of a pod template, in the shape of the manifest. Nothing here awaits."""

from gpu_runtime.contract.crd.template import Template
from gpu_runtime.contract.crd.well_known import GPU_RESOURCE
from gpu_runtime.kube.meta import Manifest

STOCK_PRIORITY_CLASS = "gpu-runtime-stock"
ACTIVE_PRIORITY_CLASS = "gpu-runtime-active"

STOCK_TERMINATION_GRACE_SECONDS = 2
"""The stock process ends at once, unless it is told to in the moment of its start. The grace must not be 0: the pod's
object would be gone before its process is."""

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
"""For what the platform itself runs."""


def user_pod_security_context(require_non_root: bool) -> Manifest:
    """For images of strangers, many of which run as root."""
    demanded = {"runAsNonRoot": True} if require_non_root else {}
    return {"seccompProfile": {"type": "RuntimeDefault"}} | demanded


USER_SECURITY_CONTEXT: Manifest = {"allowPrivilegeEscalation": False}


def resources(memory: str, gpu: int) -> Manifest:
    """What the workload reserves is also its limit: nothing is overcommitted."""
    amounts = ({"memory": memory} if memory else {}) | ({GPU_RESOURCE: str(gpu)} if gpu else {})
    return {"limits": amounts, "requests": amounts}


def main_container(image: str, template: Template, memory: str, gpu: int) -> Manifest:
    """What is empty is said, too: it is owned, and what somebody else puts there is drift."""
    return {
        "name": "main",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        # The last lines of a crash become part of the pod's status, and so of the unit's.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "command": list(template.command),
        "args": list(template.args),
        "env": [{"name": each.name, "value": each.value} for each in template.envs],
        "ports": [
            {"name": each.name, "containerPort": each.port, "protocol": each.protocol} for each in template.ports
        ],
        "resources": resources(memory, gpu),
    }


def service_ports(template: Template) -> list[Manifest]:
    return [
        {"name": each.name, "port": each.port, "protocol": each.protocol, "targetPort": each.port}
        for each in template.ports
    ]
