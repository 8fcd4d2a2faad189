"""What the environment of the container says. Read once, when serving begins."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_runtime.framework.errors import CannotServe

SOCKET = "GPU_RUNTIME_SOCKET"
INVOKE_PATH = "GPU_RUNTIME_INVOKE_PATH"
HEALTH_PATH = "GPU_RUNTIME_HEALTH_PATH"
CONCURRENCY = "GPU_RUNTIME_CONCURRENCY"
MAX_BODY_BYTES = "GPU_RUNTIME_MAX_BODY_BYTES"

SOCKET_PATH_LIMIT = 107
"""Linux takes no longer path for a unix socket."""


@dataclass(frozen=True)
class Limits:
    """What a caller may send, and how slowly. The sidecar stays away from all of them."""

    head_bytes: int = 128 * 1024
    """16 KiB of headers and as much of attributes, percent-encoded and escaped, are up to 104 KiB."""
    body_bytes: int = 64 * 1024 * 1024
    idle_seconds: float = 300.0
    """How long a connection may be kept without a request."""
    head_seconds: float = 10.0
    body_seconds: float = 60.0
    send_seconds: float = 60.0
    linger_seconds: float = 2.0
    """How long a refused caller may go on sending before it finds out: cut off sooner, it might not see the answer."""


@dataclass(frozen=True)
class Settings:
    socket: str = "/run/gpu-runtime/framework.sock"
    invoke_path: str = "/invoke"
    health_path: str = "/healthz"
    concurrency: int = 1
    limits: Limits = field(default_factory=Limits)


def from_environment(environment: Mapping[str, str]) -> Settings:
    default = Settings()
    settings = Settings(
        socket=environment.get(SOCKET) or default.socket,
        invoke_path=environment.get(INVOKE_PATH) or default.invoke_path,
        health_path=environment.get(HEALTH_PATH) or default.health_path,
        concurrency=_count(environment, CONCURRENCY, default.concurrency),
        limits=Limits(body_bytes=_count(environment, MAX_BODY_BYTES, default.limits.body_bytes)),
    )
    _check(settings)
    return settings


def _count(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and len(text) < 16 and int(text) > 0):
        raise CannotServe(f"{name} is {text!r}; give a whole number above 0")
    return int(text)


def _check(settings: Settings) -> None:
    if len(settings.socket.encode()) > SOCKET_PATH_LIMIT:
        raise CannotServe(f"{SOCKET} is longer than Linux allows for a socket; use at most {SOCKET_PATH_LIMIT} bytes")
    for name, path in ((INVOKE_PATH, settings.invoke_path), (HEALTH_PATH, settings.health_path)):
        if not path.startswith("/"):
            raise CannotServe(f"{name} is {path!r}; begin with '/'")
    if settings.invoke_path == settings.health_path:
        raise CannotServe(f"{INVOKE_PATH} and {HEALTH_PATH} are both {settings.invoke_path!r}; give two paths")
