"""Settings of the activator."""

from typing import Annotated

from msgspec import Meta, field

from gpu_runtime.contract.crd.well_known import STOCK_NAMESPACE, SYSTEM_NAMESPACE
from gpu_runtime.process.settings import BaseSettings
from gpu_runtime.process.shared_settings import (
    KubernetesSettings,
    LeaderElectionSettings,
    NatsSettings,
    PositiveSeconds,
    ProcessSettings,
)

NamespaceName = Annotated[str, Meta(min_length=1, max_length=253)]


class ActivatorNamespaceSettings(BaseSettings, frozen=True, kw_only=True):
    system: NamespaceName = SYSTEM_NAMESPACE
    """Namespace of the platform. The leader election Lease and the Operations are in this namespace."""

    stock: NamespaceName = STOCK_NAMESPACE
    """Namespace of the stock units. GPUUnits in this namespace are neither functions nor workers."""


class RuntimeAPIClientSettings(BaseSettings, frozen=True, kw_only=True):
    url: Annotated[str, Meta(pattern="^https?://")] = "http://runtime-api.runtime-system:8080"
    """Base URL of the runtime API. The activator creates workers from stock and returns stock through it."""

    token_file: str = ""
    """File with the bearer token for the runtime API. The token needs the scopes runtime and operator. The file is read
    for every request, so the token can be rotated. Empty: requests have no token."""

    request_timeout_seconds: PositiveSeconds = 10
    """Timeout of one request to the runtime API, in seconds. After a timeout the request is retried with the same
    operationID."""


class DispatchSettings(BaseSettings, frozen=True, kw_only=True):
    max_in_flight: Annotated[int, Meta(ge=1, le=4096)] = 256
    """Maximum number of invocations that this replica dispatches concurrently. Further invocations wait in the INVOKE
    stream."""

    max_deliveries: Annotated[int, Meta(ge=1, le=10_000)] = 50
    """Maximum number of deliveries of an invocation that cannot be dispatched. After the last delivery the invocation
    is dead-lettered. An invocation whose deadline passes earlier expires instead."""

    unknown_function_grace_seconds: Annotated[float, Meta(ge=0, le=60)] = 2
    """How long an invocation of an unknown function waits for the function to appear in the cache, in seconds. The
    cache of the runtime API may have received the function earlier. After this time the activator asks the Kubernetes
    API server, and the invocation fails if the function does not exist."""


class ScalingSettings(BaseSettings, frozen=True, kw_only=True):
    poll_interval_seconds: PositiveSeconds = 1
    """Interval, in seconds, at which the leader reads all backlogs and reconciles the functions with a backlog. Demand
    messages trigger a reconciliation earlier."""

    max_concurrent_reconciles: Annotated[int, Meta(ge=1, le=256)] = 16
    """Maximum number of functions that the leader reconciles concurrently."""

    worker_liveness_timeout_seconds: PositiveSeconds = 600
    """Time in seconds without an event after which a worker is unhealthy and is replaced. It counts from the creation
    of the worker, and from its last event."""

    failed_worker_grace_seconds: PositiveSeconds = 60
    """Time in seconds without an event after which a worker whose unit is in phase Failed is unhealthy. For such a
    worker, this setting replaces workerLivenessTimeoutSeconds."""

    drain_request_timeout_seconds: PositiveSeconds = 2
    """Timeout of a drain request to a worker, in seconds. A worker that does not respond in time is not removed, and
    the request is repeated."""

    initial_backoff_seconds: PositiveSeconds = 5
    """Time in seconds for which the activator creates no new worker for a function after one of its workers failed. The
    time doubles with each failure. It is reset when a worker that started after the failure serves invocations."""

    max_backoff_seconds: PositiveSeconds = 300
    """Maximum of that backoff, in seconds."""


class ReaperSettings(BaseSettings, frozen=True, kw_only=True):
    poll_interval_seconds: PositiveSeconds = 1
    """Interval, in seconds, at which the reaper checks the DISPATCH stream. A cancel triggers a check earlier."""

    deadline_grace_seconds: PositiveSeconds = 2
    """How long after its deadline the reaper leaves an invocation to the worker that may run it, in seconds. After this
    time the reaper ends the invocation as expired."""

    deleted_function_grace_seconds: PositiveSeconds = 3
    """How long a function must be missing before its waiting invocations fail, in seconds."""


class ActivatorSettings(ProcessSettings, frozen=True, kw_only=True):
    kubernetes: KubernetesSettings = KubernetesSettings()
    """Connection to the Kubernetes API server."""

    nats: NatsSettings = NatsSettings()
    """Connection to NATS, and limits of the streams."""

    runtime_api: RuntimeAPIClientSettings = field(default=RuntimeAPIClientSettings(), name="runtimeAPI")
    """Connection to the runtime API."""

    namespaces: ActivatorNamespaceSettings = ActivatorNamespaceSettings()
    """Namespaces with a special meaning."""

    leader_election: LeaderElectionSettings = LeaderElectionSettings()
    """Leader election. Only the leader scales workers and reaps invocations. Every replica dispatches."""

    dispatching: DispatchSettings = DispatchSettings()
    """Dispatch of invocations to the DISPATCH subjects of their functions."""

    scaling: ScalingSettings = ScalingSettings()
    """Creation and removal of workers."""

    reaping: ReaperSettings = ReaperSettings()
    """Reaping of dispatched invocations that no worker will run."""
