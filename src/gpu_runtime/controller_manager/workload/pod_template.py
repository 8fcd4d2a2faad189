"""Parts of pod templates that units and pools share: containers, resources, security contexts, priorities. No I/O."""

from gpu_runtime.contract.crd.reservation import Reservation
from gpu_runtime.contract.crd.template import EnvVar, Template
from gpu_runtime.contract.crd.well_known import GPU_RESOURCE
from gpu_runtime.controller_manager.workload.pod_profile import PodProfile
from gpu_runtime.kube.meta import Manifest
from gpu_runtime.kube.quantity import canonical_quantity

STOCK_TERMINATION_GRACE_SECONDS = 2
"""Termination grace period of stock pods.

The period can be short, because the stock process exits immediately on SIGTERM, unless the signal arrives while the
process starts. The period must not be 0: Kubernetes would then delete the pod object before the process has exited,
and the process would use the GPU without a pod.
"""

DEFAULT_GRACE_SECONDS = 30
"""Termination grace period of active pods without template.terminationGracePeriodSeconds, as in every Pod."""

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


def user_pod_security_context(template: Template, require_non_root: bool, profile: PodProfile) -> Manifest:
    """Return the pod security context for images of users. Many of these images run as root."""
    context: Manifest = {
        "seccompProfile": {"type": "RuntimeDefault"},
        "sysctls": [{"name": name, "value": value} for name, value in profile.sysctls],
        "runAsNonRoot": require_non_root or None,
        "runAsUser": template.run_as_user,
        "runAsGroup": template.run_as_group,
        "fsGroup": template.fs_group,
        # The kubelet would otherwise visit every file of a storage at each start.
        "fsGroupChangePolicy": "OnRootMismatch" if template.fs_group is not None else None,
    }
    return {name: value for name, value in context.items() if value is not None}


def user_security_context(profile: PodProfile) -> Manifest:
    """Return the security context of a container that runs an image of a user."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": list(profile.dropped_capabilities)}}


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
        "imagePullPolicy": template.image_pull_policy or ("Always" if template.image_pull_secrets else "IfNotPresent"),
        "workingDir": template.working_dir,
        # After a crash, the kubelet copies the last log lines to the pod status. The condition reports the last line.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "command": list(template.command),
        "args": list(template.args),
        "env": [_env_var(each) for each in template.envs],
        "ports": [
            {"name": each.name, "containerPort": each.port, "protocol": each.protocol} for each in template.ports
        ],
        "resources": resource_amounts,
        "startupProbe": None,
        "readinessProbe": None,
        "livenessProbe": None,
    }


HIDDEN_GPUS: Manifest = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
"""Without this variable, the container runtime would give a container the GPUs that the image names."""


def user_container(image: str, template: Template, reserved: Reservation, disk: str, profile: PodProfile) -> Manifest:
    """Return the container `main` with an image of a user. `disk` is the default limit of the disk space."""
    main = main_container(image, template, resources(reserved, disk))
    hidden = [HIDDEN_GPUS] if profile.hides_gpus and not reserved.gpu else []
    return main | {"env": [*main["env"], *hidden], "securityContext": user_security_context(profile)}


def _env_var(variable: EnvVar) -> Manifest:
    if variable.value_from is None:
        return {"name": variable.name, "value": variable.value}
    secret = variable.value_from.secret
    return {"name": variable.name, "valueFrom": {"secretKeyRef": {"name": secret.name, "key": secret.key}}}


# The names of storages never begin with a digit, so they cannot be equal to these names.
SHARED_MEMORY_VOLUME, SECRET_VOLUME_PREFIX = "0-shared-memory", "0-secret-"


def template_volumes(template: Template) -> tuple[list[Manifest], list[Manifest]]:
    """Return the volumes of the shared memory and of the Secrets, and their mounts."""
    volumes: list[Manifest] = []
    mounts: list[Manifest] = []
    if template.shared_memory:
        # The API server writes quantities in canonical form. Another form would look like a change by another client.
        size = {"medium": "Memory", "sizeLimit": canonical_quantity(template.shared_memory)}
        volumes.append({"name": SHARED_MEMORY_VOLUME, "emptyDir": size})
        mounts.append({"name": SHARED_MEMORY_VOLUME, "mountPath": "/dev/shm", "readOnly": False})  # noqa: S108
    for index, each in enumerate(template.secret_mounts):
        name = f"{SECRET_VOLUME_PREFIX}{index}"  # the name of a Secret can be too long for a volume
        volumes.append({"name": name, "secret": {"secretName": each.name}})
        mounts.append({"name": name, "mountPath": each.mount_path, "readOnly": True})
    return volumes, mounts


def init_containers(main: Manifest, template: Template) -> list[Manifest]:
    """Return the container of template.init, if there is one: the container `main` with another command."""
    if template.init is None:
        return []
    command = {"name": "init", "command": list(template.init.command), "args": list(template.init.args), "ports": []}
    return [main | command]


def policy_ports(template: Template) -> list[Manifest]:
    """Return the declared ports as NetworkPolicy ports. Without a port, a rule would allow all ports."""
    return [policy_port(each.port, each.protocol) for each in template.ports]


def policy_port(port: int, protocol: str) -> Manifest:
    return {"port": port, "protocol": protocol, "endPort": None}


def service_ports(template: Template) -> list[Manifest]:
    return [
        {"name": each.name, "port": each.port, "protocol": each.protocol, "targetPort": each.port}
        for each in template.ports
    ]
