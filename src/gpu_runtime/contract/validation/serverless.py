"""Validation of the serverless block of a unit."""

from gpu_runtime.contract.crd.gpu_unit import (
    MAX_SOCKET_PATH_BYTES,
    Framework,
    GPUUnitSpec,
    Serverless,
)
from gpu_runtime.contract.crd.well_known import NAME_PATTERN, REQUEST_ID_PATTERN
from gpu_runtime.contract.validation.field_error import FieldError, FieldErrors, child_path
from gpu_runtime.contract.validation.mounts import KERNEL_PATHS, MAX_MOUNTS, is_within, normalize_path
from gpu_runtime.contract.validation.pod_policy import PodPolicy
from gpu_runtime.contract.validation.values import count_errors, http_path_errors, matches

MAX_REQUEST_ID_LENGTH = 63
MAX_WORKERS = 10_000


def serverless_errors(function: Serverless, spec: GPUUnitSpec, at: str, policy: PodPolicy) -> FieldErrors:
    mounts_at = child_path(at.rpartition(".")[0], "storageMounts")
    if function.enabled or function.request_id:
        yield from request_id_errors(function.request_id, child_path(at, "requestID"))
    ceiling = policy.max_workers_per_function or MAX_WORKERS
    yield from count_errors(function.max_workers, child_path(at, "maxWorkers"), 1, ceiling)
    yield from count_errors(function.min_available_count, child_path(at, "minAvailableCount"))
    yield from count_errors(function.idle_timeout_seconds, child_path(at, "idleTimeoutSeconds"), 1, 604_800)
    yield from count_errors(function.concurrency, child_path(at, "concurrency"), 1, 1024)
    if function.min_available_count > function.max_workers:
        text = (
            f"{function.min_available_count} is greater than maxWorkers, which is {function.max_workers};"
            " lower minAvailableCount or raise maxWorkers"
        )
        yield FieldError(child_path(at, "minAvailableCount"), text)
    if spec.storage_mounts and function.max_workers > 1:
        text = (
            "a function with more than one worker cannot mount a storage; set maxWorkers to 1 or remove storageMounts"
        )
        yield FieldError(mounts_at, text)
    if function.worker_of and not matches(NAME_PATTERN, function.worker_of):
        yield FieldError(child_path(at, "workerOf"), f"{function.worker_of!r} is not a valid name of a unit")
    yield from framework_errors(function.framework, child_path(at, "framework"))
    yield from hidden_socket_errors(function.framework.socket_path, spec, at.rpartition(".")[0])


def hidden_socket_errors(socket_path: str, spec: GPUUnitSpec, at: str) -> FieldErrors:
    """Yield an error for each mount that would hide the socket of the framework. Other functions report a socket path
    that is too long, and lists of mounts that are too long."""
    if len(socket_path) > MAX_SOCKET_PATH_BYTES:
        return
    paths = {
        "storageMounts": [each.mount_path for each in spec.storage_mounts[:MAX_MOUNTS]],
        "template.secretMounts": [each.mount_path for each in spec.template.secret_mounts[:MAX_MOUNTS]],
    }
    for field, mount_paths in paths.items():
        for index, mount_path in enumerate(mount_paths):
            if is_within(socket_path, mount_path):
                text = f"{mount_path} would hide the framework's socket {socket_path}; change mountPath or socketPath"
                yield FieldError(f"{child_path(at, field)}[{index}].mountPath", text)


def request_id_errors(request_id: str, at: str) -> FieldErrors:
    if not request_id:
        yield FieldError(at, "is required; choose the ID that callers name in their invocations")
    elif len(request_id) > MAX_REQUEST_ID_LENGTH:
        yield FieldError(at, f"has {len(request_id)} characters; use at most {MAX_REQUEST_ID_LENGTH}")
    elif not matches(REQUEST_ID_PATTERN, request_id):
        yield FieldError(at, f"{request_id!r} is not a requestID; use lower-case letters, digits, '-' and '_'")


def framework_errors(framework: Framework, at: str) -> FieldErrors:
    socket = framework.socket_path
    if len(socket.encode(errors="replace")) > MAX_SOCKET_PATH_BYTES:
        yield FieldError(
            child_path(at, "socketPath"),
            f"is longer than Linux allows for a socket; use at most {MAX_SOCKET_PATH_BYTES} bytes",
        )
    elif not socket.startswith("/") or normalize_path(socket) != socket or socket.count("/") < 2:
        yield FieldError(
            child_path(at, "socketPath"),
            f"{socket!r} is not an absolute path of a file in a directory; use for example {Framework().socket_path}",
        )
    elif any(is_within(socket, kernel) for kernel in KERNEL_PATHS):
        text = f"{socket} belongs to the kernel; use a path outside {', '.join(KERNEL_PATHS)}"
        yield FieldError(child_path(at, "socketPath"), text)
    for field, path in (("invokePath", framework.invoke_path), ("healthPath", framework.health_path)):
        yield from http_path_errors(path, child_path(at, field))
