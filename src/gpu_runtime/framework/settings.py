"""What the environment of the container says. Read once, when serving begins."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_runtime.framework.errors import CannotServe

SOCKET_VARIABLE = "GPU_RUNTIME_SOCKET"
INVOKE_PATH_VARIABLE = "GPU_RUNTIME_INVOKE_PATH"
HEALTH_PATH_VARIABLE = "GPU_RUNTIME_HEALTH_PATH"
CONCURRENCY_VARIABLE = "GPU_RUNTIME_CONCURRENCY"
MAX_BODY_BYTES_VARIABLE = "GPU_RUNTIME_MAX_BODY_BYTES"

MAX_SOCKET_PATH_BYTES = 107
"""Linux takes no longer path for a unix socket."""


@dataclass(frozen=True)
class FrameworkServerLimits:
    """What a caller may send, and how slowly. The sidecar stays away from all of them."""

    max_head_bytes: int = 128 * 1024
    """16 KiB of headers and as much of attributes, percent-encoded and escaped, are up to 104 KiB."""
    max_body_bytes: int = 64 * 1024 * 1024
    idle_timeout_seconds: float = 300.0
    """How long a connection may be kept without a request."""
    head_timeout_seconds: float = 10.0
    body_timeout_seconds: float = 60.0
    send_timeout_seconds: float = 60.0
    discard_timeout_seconds: float = 2.0
    """How long a refused caller may go on sending before it finds out: cut off sooner, it might not see the answer."""


@dataclass(frozen=True)
class FrameworkServerSettings:
    socket_path: str = "/run/gpu-runtime/framework.sock"
    invoke_path: str = "/invoke"
    health_path: str = "/healthz"
    concurrency: int = 1
    limits: FrameworkServerLimits = field(default_factory=FrameworkServerLimits)


def from_environment(environment: Mapping[str, str]) -> FrameworkServerSettings:
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
        raise CannotServe(f"{name} is {text!r}; give a whole number above 0")
    return int(text)


def _validate(settings: FrameworkServerSettings) -> None:
    if len(settings.socket_path.encode()) > MAX_SOCKET_PATH_BYTES:
        raise CannotServe(
            f"{SOCKET_VARIABLE} is longer than Linux allows for a socket; use at most {MAX_SOCKET_PATH_BYTES} bytes"
        )
    for name, path in ((INVOKE_PATH_VARIABLE, settings.invoke_path), (HEALTH_PATH_VARIABLE, settings.health_path)):
        if not path.startswith("/"):
            raise CannotServe(f"{name} is {path!r}; begin with '/'")
    if settings.invoke_path == settings.health_path:
        raise CannotServe(
            f"{INVOKE_PATH_VARIABLE} and {HEALTH_PATH_VARIABLE} are both {settings.invoke_path!r}; give two paths"
        )
