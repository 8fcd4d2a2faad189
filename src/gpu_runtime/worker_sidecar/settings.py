"""The settings of the worker sidecar. The controller manager writes them for each worker."""

from typing import Annotated

from msgspec import Meta, field

from gpu_runtime.contract.crd.gpu_unit import SOCKET_PATH_LIMIT
from gpu_runtime.contract.crd.well_known import REQUEST_ID_PATTERN
from gpu_runtime.process.settings import Settings
from gpu_runtime.process.shared_settings import Nats, ProcessSettings, Seconds

Path = Annotated[str, Meta(pattern="^/")]


class Framework(Settings, frozen=True, kw_only=True):
    socket_path: Annotated[str, Meta(pattern="^/", max_length=SOCKET_PATH_LIMIT)] = "/run/gpu-runtime/framework.sock"
    """The unix socket that the user's framework listens on."""

    invoke_path: Path = "/invoke"
    """Where invocations are posted."""

    health_path: Path = "/healthz"
    """Where the framework answers 200 when it can take invocations."""

    health_seconds: Seconds = 5
    """How often an idle framework is asked whether it still can."""


class Retries(Settings, frozen=True, kw_only=True):
    attempts: Annotated[int, Meta(ge=1, le=100)] = 5
    """How often an invocation is delivered to a worker. After that it becomes a dead letter."""

    first_seconds: Seconds = 1
    """How long the second try waits. Each further one waits twice as long as the one before."""

    longest_seconds: Seconds = 60
    """The longest wait between two tries."""


class WorkerSidecarSettings(ProcessSettings, frozen=True, kw_only=True):
    nats: Nats = Nats()
    """How the queue is reached. The streams are made by others; only the function's consumer is made here."""

    request_id: Annotated[str, Meta(pattern=REQUEST_ID_PATTERN, max_length=63)] = field(name="requestID")
    """The function whose queue is served."""

    worker: Annotated[str, Meta(min_length=1)]
    """The unit that this is the sidecar of."""

    namespace: Annotated[str, Meta(min_length=1)]
    """The unit's namespace."""

    concurrency: Annotated[int, Meta(ge=1, le=1024)] = 1
    """How many invocations are taken at a time."""

    framework: Framework = Framework()
    """Where the user's framework is."""

    retries: Retries = Retries()
    """What happens to an invocation on which the framework broke off."""

    heartbeat_seconds: Seconds = 5
    """How often the worker tells that it is there, and how much it has in hand."""

    drain_seconds: Seconds = 300
    """How long /drain waits for what is in hand. Keep it below the pod's termination grace period."""
