"""Settings of the worker sidecar. The controller manager writes a settings file for each worker."""

from typing import Annotated

from msgspec import Meta, field

from gpu_runtime.contract.crd.gpu_unit import MAX_SOCKET_PATH_BYTES
from gpu_runtime.contract.crd.well_known import FUNCTION_ID_PATTERN, REQUEST_ID_PATTERN
from gpu_runtime.contract.messages.worker_event import HeartbeatSeconds
from gpu_runtime.contract.timing import DRAIN_TIMEOUT_SECONDS, HEARTBEAT_SECONDS
from gpu_runtime.process.settings import BaseSettings
from gpu_runtime.process.shared_settings import NatsSettings, PositiveSeconds, ProcessSettings

HttpPath = Annotated[str, Meta(pattern="^/")]


class FrameworkSettings(BaseSettings, frozen=True, kw_only=True):
    socket_path: Annotated[str, Meta(pattern="^/", max_length=MAX_SOCKET_PATH_BYTES)] = (
        "/run/gpu-runtime/framework.sock"
    )
    """Path of the unix socket on which the framework listens."""

    invoke_path: HttpPath = "/invoke"
    """HTTP path to which the sidecar sends each invocation as a POST request."""

    health_path: HttpPath = "/healthz"
    """HTTP path to which the sidecar sends health checks as GET requests. The framework must return 200 when it can
    accept invocations."""

    health_check_interval_seconds: PositiveSeconds = 5
    """Interval in seconds between two health checks. While an invocation is in flight, the sidecar sends no periodic
    health check."""


class RetrySettings(BaseSettings, frozen=True, kw_only=True):
    max_attempts: Annotated[int, Meta(ge=1, le=100)] = 5
    """Maximum number of times that workers start an invocation. If the last attempt also fails, a worker dead-letters
    the invocation."""

    initial_backoff_seconds: PositiveSeconds = 1
    """Delay in seconds before the second delivery of an invocation. The delay doubles with each further delivery, up to
    maxBackoffSeconds."""

    max_backoff_seconds: PositiveSeconds = 60
    """Maximum delay in seconds between two deliveries of an invocation. This setting does not limit a delay that the
    framework requests with Retry-After."""


class WorkerSidecarSettings(ProcessSettings, frozen=True, kw_only=True):
    nats: NatsSettings = NatsSettings()
    """Connection to NATS. The sidecar creates only the consumer of its function. Other processes create the streams."""

    function_id: Annotated[str, Meta(pattern=FUNCTION_ID_PATTERN, max_length=63)] = field(name="functionID")
    """The ID that the platform gave to the function that this worker serves. The worker reads the queue with this
    ID."""

    request_id: Annotated[str, Meta(pattern=REQUEST_ID_PATTERN, max_length=63)] = field(name="requestID")
    """The requestID of the function that this worker serves."""

    worker: Annotated[str, Meta(min_length=1)]
    """Name of the GPUUnit of this worker."""

    namespace: Annotated[str, Meta(min_length=1)]
    """Namespace of the GPUUnit of this worker."""

    concurrency: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Maximum number of invocations that this worker runs concurrently."""

    framework: FrameworkSettings = FrameworkSettings()
    """Connection to the framework in the user's container."""

    retries: RetrySettings = RetrySettings()
    """Redelivery of invocations. JetStream redelivers an invocation if the framework fails or requests a retry."""

    heartbeat_seconds: HeartbeatSeconds = HEARTBEAT_SECONDS
    """Interval in seconds between two heartbeats. A heartbeat contains the number of invocations in flight.
    nats.streams.dispatchAckWaitSeconds must be at least three times this interval."""

    drain_timeout_seconds: PositiveSeconds = DRAIN_TIMEOUT_SECONDS
    """Maximum time in seconds that /drained waits for invocations in flight. Set this time lower than
    terminationGracePeriodSeconds of the pod."""
