"""Builds the worker sidecar container, and adds it with its volumes and settings to the pod of a worker.

Only the sidecar container mounts the NATS credentials. The containers of a pod share one network, so a network policy
cannot prevent the user's container from connecting to NATS. Only the missing credentials can.
"""

import posixpath
from typing import Any

import msgspec

from gpu_runtime.contract.crd.gpu_unit import GPUUnitSpec, Serverless
from gpu_runtime.contract.crd.well_known import GROUP, Label
from gpu_runtime.contract.framework_protocol import (
    CONCURRENCY_VARIABLE,
    HEALTH_PATH_VARIABLE,
    INVOKE_PATH_VARIABLE,
    SOCKET_VARIABLE,
)
from gpu_runtime.contract.timing import SIDECAR_SHUTDOWN_TIMEOUT_SECONDS, termination_grace
from gpu_runtime.controller_manager.gpu_unit.observe import ObservedUnit
from gpu_runtime.controller_manager.workload.pod_profile import PodBuild
from gpu_runtime.controller_manager.workload.pod_template import PLATFORM_UID, RESTRICTED_SECURITY_CONTEXT
from gpu_runtime.kube.meta import Manifest

SIDECAR_CONTAINER_NAME = "worker-sidecar"
SETTINGS_ANNOTATION = f"{GROUP}/worker-sidecar-settings"
"""Pod annotation with the content of the sidecar's settings file. The downward API mounts it as a file."""

SETTINGS_DIRECTORY, SETTINGS_FILE = "/etc/gpu-runtime", "worker-sidecar.yaml"
CREDENTIALS_DIRECTORY = "/etc/gpu-runtime-nats"
SOCKET_DIRECTORY = "/s"
"""Mount path of the socket directory in the sidecar container.

In the user's container, the mount path is the path that the user chose. The path in the sidecar container is as short
as possible, so if the socket path in the user's container fits the length limit, the path in the sidecar container
fits too. The sidecar does not use the user's path, because a mount at that path could hide files of the sidecar image.
"""

# Storages are volumes of the same pod. Their names never begin with a digit, so they cannot be equal to these names.
SOCKET_VOLUME, SETTINGS_VOLUME, CREDENTIALS_VOLUME = "0-socket", "0-sidecar-settings", "0-nats-credentials"

DRAIN_SIGNAL_NAME = "USR1"
"""The signal on which the sidecar drains. Only a process in the container of the sidecar can send it."""

SIDECAR_SECURITY_CONTEXT: Manifest = RESTRICTED_SECURITY_CONTEXT | {
    "runAsNonRoot": True,
    "runAsUser": PLATFORM_UID,
    "runAsGroup": PLATFORM_UID,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def served_function(observed: ObservedUnit) -> Serverless | None:
    """Return the function that the unit serves, or None if the unit is not a worker."""
    return observed.unit.spec.serverless if observed.unit.spec.serves_function else None


def pod_metadata(labels: dict[str, str], observed: ObservedUnit) -> Manifest:
    """Return the labels and annotations of the pod.

    The pod of a worker also has the annotation with the sidecar's settings, and the label that network policies use to
    allow access to NATS.
    """
    function = served_function(observed)
    if function is None:
        return {"labels": labels}
    return {
        "labels": labels | {Label.NATS_ACCESS: "true"},
        "annotations": {SETTINGS_ANNOTATION: settings_file(observed, function)},
    }


def with_sidecar(pod: Manifest, observed: ObservedUnit, build: PodBuild) -> Manifest:
    """Return the pod spec of a unit. If the unit is a worker, add the sidecar."""
    function = served_function(observed)
    if function is None:
        return pod
    (main,) = pod["containers"]
    drain = termination_grace(observed.settings.serverless.sidecar.drain_timeout_seconds)
    return pod | {
        # The sidecar starts first, so that the drain hook works while the user's init command runs.
        "initContainers": [sidecar_container(observed, build), *pod["initContainers"]],
        "containers": [_user_container(main, function, observed)],
        "volumes": [*pod["volumes"], *_volumes(observed, build)],
        "terminationGracePeriodSeconds": max(drain, pod["terminationGracePeriodSeconds"]),
    }


def sidecar_container(observed: ObservedUnit, build: PodBuild) -> Manifest:
    settings = observed.settings.serverless.sidecar
    return {
        "name": SIDECAR_CONTAINER_NAME,
        "image": build.platform_image,
        "imagePullPolicy": "IfNotPresent",
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "restartPolicy": "Always",
        "command": ["gpu-runtime"],
        "args": ["worker-sidecar", "--config", f"{SETTINGS_DIRECTORY}/{SETTINGS_FILE}"],
        "env": [{"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}],
        "resources": {
            "limits": {"memory": settings.memory_limit, "ephemeral-storage": build.profile.sidecar_ephemeral_storage},
            # Without a request, Kubernetes would reserve the limit.
            "requests": {"cpu": settings.cpu, "memory": settings.memory, "ephemeral-storage": "0"},
        },
        # No startup probe: the kubelet would start the user's container only after the probe has succeeded.
        "startupProbe": None,
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": settings.port},
            "periodSeconds": 10,
            "failureThreshold": 6,
            "timeoutSeconds": 5,
        },
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": settings.port},
            "periodSeconds": 2,
            "timeoutSeconds": 2,
        },
        # When the pod ends, the kubelet runs this hook immediately. It stops the sidecar after the user's container.
        "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", f"kill -{DRAIN_SIGNAL_NAME} 1"]}}},
        "securityContext": SIDECAR_SECURITY_CONTEXT,
        "volumeMounts": _volume_mounts(observed),
    }


def settings_file(observed: ObservedUnit, function: Serverless) -> str:
    """Return the sidecar's settings file as JSON, which is also valid YAML."""
    metadata, settings = observed.unit.metadata, observed.settings.serverless
    framework = function.framework
    document: dict[str, Any] = {
        "health": {"bindAddress": f":{settings.sidecar.port}"},
        "gracefulShutdownTimeoutSeconds": SIDECAR_SHUTDOWN_TIMEOUT_SECONDS,
        "nats": msgspec.to_builtins(settings.nats),
        "functionID": observed.function_id,
        "requestID": function.request_id,
        "worker": metadata.name,
        "namespace": metadata.namespace,
        "concurrency": function.concurrency,
        "framework": {
            "socketPath": f"{SOCKET_DIRECTORY}/{posixpath.basename(framework.socket_path)}",
            "invokePath": framework.invoke_path,
            "healthPath": framework.health_path,
        },
        "retries": {"maxAttempts": settings.sidecar.max_attempts},
        "heartbeatSeconds": settings.sidecar.heartbeat_seconds,
        "drainTimeoutSeconds": settings.sidecar.drain_timeout_seconds,
    }
    return msgspec.json.encode(document, order="sorted").decode()


def _user_container(main: Manifest, function: Serverless, observed: ObservedUnit) -> Manifest:
    """Add the socket volume, the environment of the framework protocol and the preStop hook to the user's container.

    The variables of the platform replace variables with the same names in the user's template.
    """
    framework = function.framework
    platform_env = {
        SOCKET_VARIABLE: framework.socket_path,
        INVOKE_PATH_VARIABLE: framework.invoke_path,
        HEALTH_PATH_VARIABLE: framework.health_path,
        CONCURRENCY_VARIABLE: str(function.concurrency),
    }
    user_env = [each for each in main["env"] if each["name"] not in platform_env]
    mount = {"name": SOCKET_VOLUME, "mountPath": posixpath.dirname(framework.socket_path), "readOnly": False}
    return main | {
        "env": [*user_env, *({"name": name, "value": value} for name, value in platform_env.items())],
        "volumeMounts": [*main["volumeMounts"], mount],
        # The kubelet stops this container when the hook returns. So the hook waits until the worker is drained.
        "lifecycle": {"preStop": {"httpGet": {"path": "/drained", "port": observed.settings.serverless.sidecar.port}}},
    }


def _volume_mounts(observed: ObservedUnit) -> list[Manifest]:
    mounts = [
        {"name": SETTINGS_VOLUME, "mountPath": SETTINGS_DIRECTORY, "readOnly": True},
        {"name": SOCKET_VOLUME, "mountPath": SOCKET_DIRECTORY, "readOnly": True},
    ]
    if observed.settings.serverless.credentials_secret:
        mounts.append({"name": CREDENTIALS_VOLUME, "mountPath": CREDENTIALS_DIRECTORY, "readOnly": True})
    return mounts


def _volumes(observed: ObservedUnit, build: PodBuild) -> list[Manifest]:
    """Return the volumes of the sidecar. Every user can write to the socket directory, because it is an emptyDir."""
    settings = {"path": SETTINGS_FILE, "fieldRef": {"fieldPath": f"metadata.annotations['{SETTINGS_ANNOTATION}']"}}
    volumes: list[Manifest] = [
        {"name": SOCKET_VOLUME, "emptyDir": dict(build.profile.socket_directory)},
        {"name": SETTINGS_VOLUME, "downwardAPI": {"items": [settings]}},
    ]
    if secret := observed.settings.serverless.credentials_secret:
        volumes.append({"name": CREDENTIALS_VOLUME, "secret": {"secretName": secret}})
    return volumes


def uses_sidecar_port(spec: GPUUnitSpec, port: int) -> bool:
    """Return whether a worker declares the sidecar's port. Two containers of one pod cannot listen on one port."""
    return spec.serves_function and any(each.port == port and each.protocol == "TCP" for each in spec.template.ports)
