"""Settings of the activator."""

from typing import Annotated

from msgspec import Meta, field

from gpu_runtime.contract.crd.well_known import STOCK_NAMESPACE, SYSTEM_NAMESPACE
from gpu_runtime.contract.timing import TAKEOVER_GRACE_SECONDS, WORKER_DEADLINE_GRACE_SECONDS
from gpu_runtime.contract.validation.pod_policy import DEFAULT_WORKER_CEILING
from gpu_runtime.process.settings import BaseSettings
from gpu_runtime.process.shared_settings import (
    KubernetesSettings,
    LeaderElectionSettings,
    NatsSettings,
    PositiveSeconds,
    ProcessSettings,
    TicketSettings,
    WorkerCeiling,
)

NamespaceName = Annotated[str, Meta(min_length=1, max_length=253)]


class ActivatorNamespaceSettings(BaseSettings, frozen=True, kw_only=True):
    system: NamespaceName = SYSTEM_NAMESPACE
    """Namespace of the platform. The leader election Lease and the Operations are in this namespace."""

    stock: NamespaceName = STOCK_NAMESPACE
    """Namespace of the stock units. GPUUnits in this namespace are neither functions nor workers."""


class RuntimeAPIClientSettings(BaseSettings, frozen=True, kw_only=True):
    url: Annotated[str, Meta(pattern="^https?://")] = "http://runtime-api.runtime-system:8080"
    """Base URL of the runtime API. The activator sends requests to the runtime API to create workers from stock and to
    return stock."""

    token_file: str = ""
    """Path of a file with the bearer token for the runtime API. The token needs the scope worker. The
    activator reads the file for every request, so the token can be rotated. If the path is empty, requests have no
    token."""

    request_timeout_seconds: PositiveSeconds = 10
    """Timeout in seconds of each request to the runtime API. After a timeout, the activator retries the request with
    the same operationID."""


class DispatchSettings(BaseSettings, frozen=True, kw_only=True):
    max_in_flight: Annotated[int, Meta(ge=1, le=4096)] = 256
    """Maximum number of invocations that this replica dispatches concurrently. Further invocations wait in the INVOKE
    stream."""

    max_deliveries: Annotated[int, Meta(ge=1, le=10_000)] = 50
    """Maximum number of times that JetStream delivers an invocation to activators. If the last delivery also fails, the
    activator dead-letters the invocation. If the deadline of the invocation passes before the last delivery, the
    activator ends the invocation as expired instead."""

    unknown_function_grace_seconds: Annotated[float, Meta(ge=0, le=60)] = 2
    """Time in seconds that an invocation waits if the activator's cache does not contain its function. The runtime API
    may have received a new function earlier than the activator. After this time, the activator reads the function from
    the Kubernetes API server. If the function does not exist or is disabled, the invocation fails."""


class ScalingSettings(BaseSettings, frozen=True, kw_only=True):
    poll_interval_seconds: PositiveSeconds = 1
    """Interval in seconds at which the leader reads all backlogs and reconciles the functions that have a backlog. When
    the leader receives a demand hint, it reconciles the function of the hint immediately."""

    max_concurrent_reconciles: Annotated[int, Meta(ge=1, le=256)] = 16
    """Maximum number of functions that the leader reconciles concurrently."""

    worker_liveness_timeout_seconds: PositiveSeconds = 600
    """Time in seconds without an event after which a worker is unhealthy. The leader then replaces the worker. The time
    counts from the last event of the worker, or from the creation of the worker if the worker has sent no event. The
    value must be at least nats.streams.dispatchAckWaitSeconds."""

    failed_worker_grace_seconds: PositiveSeconds = 60
    """Time in seconds without an event after which a worker is unhealthy if its unit is in phase Failed. For such a
    worker, this time replaces workerLivenessTimeoutSeconds. The value must be at least
    nats.streams.dispatchAckWaitSeconds."""

    max_workers_per_function: WorkerCeiling = DEFAULT_WORKER_CEILING
    """Maximum number of workers of each function. If maxWorkers of a function is greater, the activator creates only
    this number of workers, and records the Event WorkersLimited on the function. Set the same value in
    pods.maxWorkersPerFunction of the runtime API."""

    drain_request_timeout_seconds: PositiveSeconds = 2
    """Timeout in seconds of a drain request to a worker. If the worker does not respond in time, the leader keeps
    the worker and repeats the request."""

    initial_backoff_seconds: PositiveSeconds = 5
    """Time in seconds for which the activator creates no new worker of a function, after a worker of the function has
    failed. The time doubles with each failure, up to maxBackoffSeconds. The time ends when a new worker has sent its
    first event. When a new worker has served for a minute, the activator no longer counts the earlier failures."""

    max_backoff_seconds: PositiveSeconds = 300
    """Maximum time in seconds for which the activator creates no new worker of a function, after a worker of the
    function has failed."""


class ReaperSettings(BaseSettings, frozen=True, kw_only=True):
    poll_interval_seconds: PositiveSeconds = 1
    """Interval in seconds at which the reaper checks the DISPATCH stream. After a cancel request, the reaper
    checks the stream immediately."""

    deadline_grace_seconds: Annotated[float, Meta(gt=WORKER_DEADLINE_GRACE_SECONDS, le=86400)] = TAKEOVER_GRACE_SECONDS
    """Time in seconds that the reaper waits after the deadline of a dispatched invocation, before it ends the
    invocation as expired. During this time, only the worker that runs the invocation may end it. This worker waits
    0.5 s after the deadline for the response of the framework."""

    deleted_function_grace_seconds: PositiveSeconds = 3
    """Time in seconds that the reaper waits after a function was deleted or disabled. After this time, the reaper ends
    the waiting invocations of the function as failed."""


class ActivatorSettings(ProcessSettings, frozen=True, kw_only=True):
    kubernetes: KubernetesSettings = KubernetesSettings()
    """Connection to the Kubernetes API server."""

    nats: NatsSettings = NatsSettings()
    """Connection to NATS, and limits of the streams."""

    tickets: TicketSettings = TicketSettings()
    """Keys of invocation tickets. The activator dispatches only invocations that have a valid ticket."""

    runtime_api: RuntimeAPIClientSettings = field(default=RuntimeAPIClientSettings(), name="runtimeAPI")
    """Connection to the runtime API."""

    namespaces: ActivatorNamespaceSettings = ActivatorNamespaceSettings()
    """Namespaces with a special meaning."""

    leader_election: LeaderElectionSettings = LeaderElectionSettings()
    """Leader election. Only the leader scales workers and reaps invocations. Every replica dispatches invocations."""

    dispatching: DispatchSettings = DispatchSettings()
    """Dispatch of invocations: the activator moves them from the INVOKE stream to the DISPATCH stream."""

    scaling: ScalingSettings = ScalingSettings()
    """Creation and deletion of workers."""

    reaping: ReaperSettings = ReaperSettings()
    """The reaper, which ends dispatched invocations that no worker will run."""
