"""Settings of the framework, read once from environment variables of the container when serve() starts."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_runtime.framework.errors import CannotServe

SOCKET_VARIABLE = "GPU_RUNTIME_SOCKET"
INVOKE_PATH_VARIABLE = "GPU_RUNTIME_INVOKE_PATH"
HEALTH_PATH_VARIABLE = "GPU_RUNTIME_HEALTH_PATH"
CONCURRENCY_VARIABLE = "GPU_RUNTIME_CONCURRENCY"
MAX_BODY_BYTES_VARIABLE = "GPU_RUNTIME_MAX_BODY_BYTES"

MAX_SOCKET_PATH_BYTES = 107
"""Linux limits the path of a unix socket to this length."""


@dataclass(frozen=True)
class FrameworkServerLimits:
    """Limits on the size and the duration of a request. Requests of the worker sidecar stay below all of them."""

    max_head_bytes: int = 128 * 1024
    """Largest request head. A larger one is answered with 431. The contract allows 16 KiB of headers and 16 KiB of
    attributes, which grow to at most 104 KiB when they are percent-encoded and escaped."""
    max_body_bytes: int = 64 * 1024 * 1024
    """Largest request body. A larger one is answered with 413."""
    idle_timeout_seconds: float = 300.0
    """Time after which the server closes a connection without a request."""
    head_timeout_seconds: float = 10.0
    """Time in which the request head must arrive after its first byte. A slower request is answered with 408."""
    body_timeout_seconds: float = 60.0
    """Time in which the request body must arrive. A slower request is answered with 408."""
    send_timeout_seconds: float = 60.0
    """Time in which the caller must read the response. The server aborts the connection of a slower caller."""
    discard_timeout_seconds: float = 2.0
    """Time for which the server discards input after it rejected a request. If the server closed the connection
    immediately, the writes of the caller would fail and it might not read the error response."""


@dataclass(frozen=True)
class FrameworkServerSettings:
    """Settings of the framework server. The defaults equal those of the GPUUnit resource."""

    socket_path: str = "/run/gpu-runtime/framework.sock"
    """Path of the unix socket to listen on."""
    invoke_path: str = "/invoke"
    """HTTP path for invocations."""
    health_path: str = "/healthz"
    """HTTP path for health checks."""
    concurrency: int = 1
    """Maximum number of handler calls at a time. Further invocations wait for a free slot."""
    limits: FrameworkServerLimits = field(default_factory=FrameworkServerLimits)


def from_environment(environment: Mapping[str, str]) -> FrameworkServerSettings:
    """Read and validate the settings. A missing or empty variable means the default."""
    default = FrameworkServerSettings()
    settings = FrameworkServerSettings(
        socket_path=environment.get(SOCKET_VARIABLE) or default.socket_path,
        invoke_path=environment.get(INVOKE_PATH_VARIABLE) or default.invoke_path,
        health_path=environment.get(HEALTH_PATH_VARIABLE) or default.health_path,
        concurrency=_positive_int(environment, CONCURRENCY_VARIABLE, default.concurrency),
        limits=FrameworkServerLimits(
            max_body_bytes=_positive_int(environment, MAX_BODY_BYTES_VARIABLE, default.limits.max_body_bytes)
        ),
    )
    _validate(settings)
    return settings


def _positive_int(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and len(text) < 16 and int(text) > 0):
        raise CannotServe(f"{name} is {text!r}; use an integer greater than 0")
    return int(text)


def _validate(settings: FrameworkServerSettings) -> None:
    if len(settings.socket_path.encode()) > MAX_SOCKET_PATH_BYTES:
        raise CannotServe(
            f"{SOCKET_VARIABLE} is longer than Linux allows for a socket; use at most {MAX_SOCKET_PATH_BYTES} bytes"
        )
    for name, path in ((INVOKE_PATH_VARIABLE, settings.invoke_path), (HEALTH_PATH_VARIABLE, settings.health_path)):
        if not path.startswith("/"):
            raise CannotServe(f"{name} is {path!r}; use a path that begins with '/'")
    if settings.invoke_path == settings.health_path:
        raise CannotServe(
            f"{INVOKE_PATH_VARIABLE} and {HEALTH_PATH_VARIABLE} are both {settings.invoke_path!r}; use different paths"
        )
