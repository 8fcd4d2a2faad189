"""Settings of the worker sidecar. The controller manager writes a settings file for each worker."""

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
    """Path of the unix socket that the framework listens on."""

    invoke_path: HttpPath = "/invoke"
    """HTTP path to which the sidecar sends invocations with POST."""

    health_path: HttpPath = "/healthz"
    """HTTP path of the health check. The framework answers GET with 200 when it can serve invocations."""

    health_check_interval_seconds: PositiveSeconds = 5
    """Interval between health checks while no invocation is in flight. A busy framework is not checked."""


class RetrySettings(BaseSettings, frozen=True, kw_only=True):
    max_deliveries: Annotated[int, Meta(ge=1, le=100)] = 5
    """Maximum number of deliveries of an invocation to workers. If the last one fails, the invocation is
    dead-lettered."""

    initial_backoff_seconds: PositiveSeconds = 1
    """Delay before the second delivery. The delay doubles with each further delivery."""

    max_backoff_seconds: PositiveSeconds = 60
    """Maximum delay between two deliveries."""


class WorkerSidecarSettings(ProcessSettings, frozen=True, kw_only=True):
    nats: NatsSettings = NatsSettings()
    """Connection to NATS. Other processes create the streams; the sidecar creates only the consumer of its function."""

    request_id: Annotated[str, Meta(pattern=REQUEST_ID_PATTERN, max_length=63)] = field(name="requestID")
    """The requestID of the function that this worker serves."""

    worker: Annotated[str, Meta(min_length=1)]
    """Name of the GPUUnit of this worker."""

    namespace: Annotated[str, Meta(min_length=1)]
    """Namespace of the GPUUnit."""

    concurrency: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Maximum number of invocations in flight on this worker."""

    framework: FrameworkSettings = FrameworkSettings()
    """Connection to the framework in the container of the user."""

    retries: RetrySettings = RetrySettings()
    """Redelivery of an invocation when the framework fails or requests a retry."""

    heartbeat_seconds: PositiveSeconds = 5
    """Interval between heartbeats. A heartbeat reports the worker and its number of invocations in flight."""

    drain_timeout_seconds: PositiveSeconds = 300
    """Time for which /drain waits for invocations in flight. Keep it below the termination grace period of the pod."""
