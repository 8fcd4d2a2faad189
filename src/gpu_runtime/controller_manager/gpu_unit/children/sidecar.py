"""The worker sidecar of a unit that serves a function, and what it adds to the unit's pod.

It alone holds the queue's credentials: they are mounted into its container and no other. The containers of a pod share
one network, so it is not the network that keeps the user's container out of the queue.
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
from gpu_runtime.controller_manager.gpu_unit.observe import ObservedUnit
from gpu_runtime.controller_manager.workload.pod_template import PLATFORM_UID, RESTRICTED_SECURITY_CONTEXT
from gpu_runtime.kube.meta import Manifest

SIDECAR_CONTAINER_NAME = "worker-sidecar"
SETTINGS_ANNOTATION = f"{GROUP}/worker-sidecar-settings"
"""The annotation of the pod that holds the sidecar's settings file."""

SETTINGS_DIRECTORY, SETTINGS_FILE = "/etc/gpu-runtime", "worker-sidecar.yaml"
CREDENTIALS_DIRECTORY = "/etc/gpu-runtime-nats"
SOCKET_DIRECTORY = "/s"
"""Where the sidecar sees the folder that its user chose. A short one: what is not too long there is not too long here,
and no choice of a user hides anything of the sidecar's own."""

# Storages are volumes of the pod under their own names, which never begin with a digit.
SOCKET_VOLUME, SETTINGS_VOLUME, CREDENTIALS_VOLUME = "0-socket", "0-sidecar-settings", "0-nats-credentials"

SIDECAR_SHUTDOWN_TIMEOUT_SECONDS = 5
"""The sidecar is told to stop when the user's container is gone: there is nothing left to wait for."""
EXTRA_TERMINATION_GRACE_SECONDS = 15
"""Beyond draining: for the user's container to end, and for the sidecar after it."""

SIDECAR_SECURITY_CONTEXT: Manifest = RESTRICTED_SECURITY_CONTEXT | {
    "runAsNonRoot": True,
    "runAsUser": PLATFORM_UID,
    "runAsGroup": PLATFORM_UID,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def served_function(seen: ObservedUnit) -> Serverless | None:
    """The function that the unit's pod serves."""
    return seen.unit.spec.serverless if seen.unit.spec.serves_function else None


def pod_metadata(labels: dict[str, str], seen: ObservedUnit) -> Manifest:
    """With the sidecar's settings, and with what admits the pod to the queue as far as the network decides that."""
    function = served_function(seen)
    if function is None:
        return {"labels": labels}
    return {
        "labels": labels | {Label.NATS_ACCESS: "true"},
        "annotations": {SETTINGS_ANNOTATION: settings_file(seen, function)},
    }


def with_sidecar(pod: Manifest, seen: ObservedUnit) -> Manifest:
    """The pod of a unit, with a sidecar if it serves a function."""
    function = served_function(seen)
    if function is None:
        return pod
    (main,) = pod["containers"]
    return pod | {
        "initContainers": [sidecar_container(seen)],
        "containers": [_user_container(main, function, seen)],
        "volumes": [*pod["volumes"], *_volumes(seen)],
        "terminationGracePeriodSeconds": round(seen.settings.serverless.sidecar.drain_timeout_seconds)
        + EXTRA_TERMINATION_GRACE_SECONDS,
    }


def sidecar_container(seen: ObservedUnit) -> Manifest:
    own = seen.settings.serverless.sidecar
    return {
        "name": SIDECAR_CONTAINER_NAME,
        "image": seen.settings.images.sidecar or seen.settings.images.stock,
        "imagePullPolicy": "IfNotPresent",
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "restartPolicy": "Always",
        "command": ["gpu-runtime"],
        "args": ["worker-sidecar", "--config", f"{SETTINGS_DIRECTORY}/{SETTINGS_FILE}"],
        "env": [{"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}],
        "resources": {
            "limits": {"memory": own.memory_limit},
            "requests": {"cpu": own.cpu, "memory": own.memory},
        },
        # No startup probe: the user's container, which may have much to load, would wait for it.
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": own.port},
            "periodSeconds": 10,
            "failureThreshold": 6,
            "timeoutSeconds": 5,
        },
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": own.port}, "periodSeconds": 2, "timeoutSeconds": 2},
        "securityContext": SIDECAR_SECURITY_CONTEXT,
        "volumeMounts": _volume_mounts(seen),
    }


def settings_file(seen: ObservedUnit, function: Serverless) -> str:
    """The sidecar's settings. JSON is YAML, too."""
    metadata, own = seen.unit.metadata, seen.settings.serverless
    framework = function.framework
    document: dict[str, Any] = {
        "health": {"bindAddress": f":{own.sidecar.port}"},
        "gracefulShutdownTimeoutSeconds": SIDECAR_SHUTDOWN_TIMEOUT_SECONDS,
        "nats": msgspec.to_builtins(own.nats),
        "requestID": function.request_id,
        "worker": metadata.name,
        "namespace": metadata.namespace,
        "concurrency": function.concurrency,
        "framework": {
            "socketPath": f"{SOCKET_DIRECTORY}/{posixpath.basename(framework.socket_path)}",
            "invokePath": framework.invoke_path,
            "healthPath": framework.health_path,
        },
        "retries": {"maxDeliveries": own.sidecar.max_deliveries},
        "heartbeatSeconds": own.sidecar.heartbeat_seconds,
        "drainTimeoutSeconds": own.sidecar.drain_timeout_seconds,
    }
    return msgspec.json.encode(document, order="sorted").decode()


def _user_container(main: Manifest, function: Serverless, seen: ObservedUnit) -> Manifest:
    """The user's container: where it is to listen, and who is told before it ends."""
    framework = function.framework
    told = {
        SOCKET_VARIABLE: framework.socket_path,
        INVOKE_PATH_VARIABLE: framework.invoke_path,
        HEALTH_PATH_VARIABLE: framework.health_path,
        CONCURRENCY_VARIABLE: str(function.concurrency),
    }
    own = [each for each in main["env"] if each["name"] not in told]
    mount = {"name": SOCKET_VOLUME, "mountPath": posixpath.dirname(framework.socket_path), "readOnly": False}
    return main | {
        "env": [*own, *({"name": name, "value": value} for name, value in told.items())],
        "volumeMounts": [*main["volumeMounts"], mount],
        # The sidecar hears of the pod's end only after this container: it must be told before.
        "lifecycle": {"preStop": {"httpGet": {"path": "/drain", "port": seen.settings.serverless.sidecar.port}}},
    }


def _volume_mounts(seen: ObservedUnit) -> list[Manifest]:
    mounts = [
        {"name": SETTINGS_VOLUME, "mountPath": SETTINGS_DIRECTORY, "readOnly": True},
        {"name": SOCKET_VOLUME, "mountPath": SOCKET_DIRECTORY, "readOnly": True},
    ]
    if seen.settings.serverless.credentials_secret:
        mounts.append({"name": CREDENTIALS_VOLUME, "mountPath": CREDENTIALS_DIRECTORY, "readOnly": True})
    return mounts


def _volumes(seen: ObservedUnit) -> list[Manifest]:
    """The folder of the socket is writable for every user of the pod, as the kubelet makes it."""
    settings = {"path": SETTINGS_FILE, "fieldRef": {"fieldPath": f"metadata.annotations['{SETTINGS_ANNOTATION}']"}}
    volumes: list[Manifest] = [
        {"name": SOCKET_VOLUME, "emptyDir": {}},
        {"name": SETTINGS_VOLUME, "downwardAPI": {"items": [settings]}},
    ]
    if secret := seen.settings.serverless.credentials_secret:
        volumes.append({"name": CREDENTIALS_VOLUME, "secret": {"secretName": secret}})
    return volumes


def uses_sidecar_port(spec: GPUUnitSpec, port: int) -> bool:
    """The containers of a pod share one network: two of them cannot listen on one port."""
    return spec.serves_function and any(each.port == port and each.protocol == "TCP" for each in spec.template.ports)
