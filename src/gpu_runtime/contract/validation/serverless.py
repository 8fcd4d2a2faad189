"""The serverless block: what makes a unit a function."""

from gpu_runtime.contract.crd.gpu_unit import HTTP_PATH_LIMIT, SOCKET_PATH_LIMIT, Framework, GPUUnitSpec, Serverless
from gpu_runtime.contract.crd.well_known import NAME_PATTERN, REQUEST_ID_PATTERN
from gpu_runtime.contract.validation.field_error import Problem, Problems, under
from gpu_runtime.contract.validation.mounts import normal_path, within
from gpu_runtime.contract.validation.values import count_problems, matches

REQUEST_ID_LIMIT = 63


def serverless_problems(function: Serverless, spec: GPUUnitSpec, at: str) -> Problems:
    mounts_at = under(at.rpartition(".")[0], "storageMounts")
    if function.enabled or function.request_id:
        yield from request_id_problems(function.request_id, under(at, "requestID"))
    yield from count_problems(function.max_workers, under(at, "maxWorkers"), 1, 10_000)
    yield from count_problems(function.min_available_count, under(at, "minAvailableCount"))
    yield from count_problems(function.idle_timeout_seconds, under(at, "idleTimeoutSeconds"), 1, 604_800)
    yield from count_problems(function.concurrency, under(at, "concurrency"), 1, 1024)
    if function.min_available_count > function.max_workers:
        text = f"{function.min_available_count} is above maxWorkers, which is {function.max_workers}"
        yield Problem(under(at, "minAvailableCount"), text)
    if spec.storage_mounts and function.max_workers > 1:
        text = "a storage is mounted by one unit at a time; set maxWorkers to 1 or mount nothing"
        yield Problem(mounts_at, text)
    if function.worker_of and not matches(NAME_PATTERN, function.worker_of):
        yield Problem(under(at, "workerOf"), f"{function.worker_of!r} is not the name of a unit")
    yield from framework_problems(function.framework, under(at, "framework"))
    for index, mount in enumerate(spec.storage_mounts):
        if within(function.framework.socket_path, mount.mount_path):
            text = f"{mount.mount_path} would hide the framework's socket {function.framework.socket_path}"
            yield Problem(f"{mounts_at}[{index}].mountPath", text)


def request_id_problems(request_id: str, at: str) -> Problems:
    if not request_id:
        yield Problem(at, "is required; it names the function's queue")
    elif len(request_id) > REQUEST_ID_LIMIT:
        yield Problem(at, f"has {len(request_id)} characters; use at most {REQUEST_ID_LIMIT}")
    elif not matches(REQUEST_ID_PATTERN, request_id):
        yield Problem(at, f"{request_id!r} is not a requestID; use lower-case letters, digits, '-' and '_'")


def framework_problems(framework: Framework, at: str) -> Problems:
    socket = framework.socket_path
    if not socket.startswith("/") or normal_path(socket) != socket or socket.count("/") < 2:
        yield Problem(
            under(at, "socketPath"), f"{socket!r} is not an absolute path of a file in a directory of its own"
        )
    elif len(socket.encode()) > SOCKET_PATH_LIMIT:
        yield Problem(
            under(at, "socketPath"), f"is longer than Linux allows for a socket; use at most {SOCKET_PATH_LIMIT}"
        )
    for field, path in (("invokePath", framework.invoke_path), ("healthPath", framework.health_path)):
        if not path.startswith("/") or any(character.isspace() for character in path):
            yield Problem(under(at, field), f"{path!r} is not an HTTP path; begin with '/'")
        elif len(path) > HTTP_PATH_LIMIT:
            yield Problem(under(at, field), f"has {len(path)} characters; use at most {HTTP_PATH_LIMIT}")
