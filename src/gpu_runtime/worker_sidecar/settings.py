"""The settings of the worker sidecar. The controller manager writes them for each worker."""

from typing import Annotated

from msgspec import Meta, field

from gpu_runtime.contract.crd.gpu_unit import MAX_SOCKET_PATH_BYTES
from gpu_runtime.contract.crd.well_known import REQUEST_ID_PATTERN
from gpu_runtime.process.settings import BaseSettings
from gpu_runtime.process.shared_settings import NatsSettings, PositiveSeconds, ProcessSettings

HttpPath = Annotated[str, Meta(pattern="^/")]


class FrameworkSettings(BaseSettings, frozen=True, kw_only=True):
    socket_path: Annotated[str, Meta(pattern="^/", max_length=MAX_SOCKET_PATH_BYTES)] = (
        "/run/gpu-runtime/framework.sock"
    )
    """The unix socket that the user's framework listens on."""

    invoke_path: HttpPath = "/invoke"
    """Where invocations are posted."""

    health_path: HttpPath = "/healthz"
    """Where the framework answers 200 when it can take invocations."""

    health_check_interval_seconds: PositiveSeconds = 5
    """How often an idle framework is asked whether it still can."""


class RetrySettings(BaseSettings, frozen=True, kw_only=True):
    max_deliveries: Annotated[int, Meta(ge=1, le=100)] = 5
    """How often an invocation is delivered to a worker. After that it becomes a dead letter."""

    initial_backoff_seconds: PositiveSeconds = 1
    """How long the second try waits. Each further one waits twice as long as the one before."""

    max_backoff_seconds: PositiveSeconds = 60
    """The longest wait between two tries."""


class WorkerSidecarSettings(ProcessSettings, frozen=True, kw_only=True):
    nats: NatsSettings = NatsSettings()
    """How the queue is reached. The streams are made by others; only the function's consumer is made here."""

    request_id: Annotated[str, Meta(pattern=REQUEST_ID_PATTERN, max_length=63)] = field(name="requestID")
    """The function whose queue is served."""

    worker: Annotated[str, Meta(min_length=1)]
    """The unit that this is the sidecar of."""

    namespace: Annotated[str, Meta(min_length=1)]
    """The unit's namespace."""

    concurrency: Annotated[int, Meta(ge=1, le=1024)] = 1
    """How many invocations are taken at a time."""

    framework: FrameworkSettings = FrameworkSettings()
    """Where the user's framework is."""

    retries: RetrySettings = RetrySettings()
    """What happens to an invocation on which the framework broke off."""

    heartbeat_seconds: PositiveSeconds = 5
    """How often the worker tells that it is there, and how much it has in hand."""

    drain_timeout_seconds: PositiveSeconds = 300
    """How long /drain waits for what is in hand. Keep it below the pod's termination grace period."""
