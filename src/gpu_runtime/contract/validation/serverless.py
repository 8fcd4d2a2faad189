"""Validation of the serverless block of a unit."""

from gpu_runtime.contract.crd.gpu_unit import (
    MAX_SOCKET_PATH_BYTES,
    Framework,
    GPUUnitSpec,
    Serverless,
)
from gpu_runtime.contract.crd.well_known import NAME_PATTERN, REQUEST_ID_PATTERN
from gpu_runtime.contract.validation.field_error import FieldError, FieldErrors, child_path
from gpu_runtime.contract.validation.mounts import KERNEL_PATHS, is_within, normalize_path
from gpu_runtime.contract.validation.values import count_errors, http_path_errors, matches

MAX_REQUEST_ID_LENGTH = 63


def serverless_errors(function: Serverless, spec: GPUUnitSpec, at: str) -> FieldErrors:
    mounts_at = child_path(at.rpartition(".")[0], "storageMounts")
    if function.enabled or function.request_id:
        yield from request_id_errors(function.request_id, child_path(at, "requestID"))
    yield from count_errors(function.max_workers, child_path(at, "maxWorkers"), 1, 10_000)
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
    secrets_at = child_path(at.rpartition(".")[0], "template.secretMounts")
    mounts = [(f"{mounts_at}[{index}]", each.mount_path) for index, each in enumerate(spec.storage_mounts)]
    mounts += [(f"{secrets_at}[{index}]", each.mount_path) for index, each in enumerate(spec.template.secret_mounts)]
    for path, mount_path in mounts:
        if is_within(function.framework.socket_path, mount_path):
            text = (
                f"{mount_path} would hide the framework's socket {function.framework.socket_path};"
                " change mountPath or socketPath"
            )
            yield FieldError(f"{path}.mountPath", text)


def request_id_errors(request_id: str, at: str) -> FieldErrors:
    if not request_id:
        yield FieldError(at, "is required; choose the ID that callers name in their invocations")
    elif len(request_id) > MAX_REQUEST_ID_LENGTH:
        yield FieldError(at, f"has {len(request_id)} characters; use at most {MAX_REQUEST_ID_LENGTH}")
    elif not matches(REQUEST_ID_PATTERN, request_id):
        yield FieldError(at, f"{request_id!r} is not a requestID; use lower-case letters, digits, '-' and '_'")


def framework_errors(framework: Framework, at: str) -> FieldErrors:
    socket = framework.socket_path
    if not socket.startswith("/") or normalize_path(socket) != socket or socket.count("/") < 2:
        yield FieldError(
            child_path(at, "socketPath"),
            f"{socket!r} is not an absolute path of a file in a directory; use for example {Framework().socket_path}",
        )
    elif any(is_within(socket, kernel) for kernel in KERNEL_PATHS):
        text = f"{socket} belongs to the kernel; use a path outside {', '.join(KERNEL_PATHS)}"
        yield FieldError(child_path(at, "socketPath"), text)
    elif len(socket.encode()) > MAX_SOCKET_PATH_BYTES:
        yield FieldError(
            child_path(at, "socketPath"),
            f"is longer than Linux allows for a socket; use at most {MAX_SOCKET_PATH_BYTES} bytes",
        )
    for field, path in (("invokePath", framework.invoke_path), ("healthPath", framework.health_path)):
        yield from http_path_errors(path, child_path(at, field))
