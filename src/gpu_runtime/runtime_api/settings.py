"""Settings of the runtime API. The field docstrings are the comments in the sample settings file."""

from dataclasses import replace
from typing import Annotated, Literal

from msgspec import Meta

from gpu_runtime.contract.crd.well_known import INSTANCE_NAMESPACE, STOCK_NAMESPACE, SYSTEM_NAMESPACE
from gpu_runtime.contract.validation.pod_policy import DEFAULT_WORKER_CEILING, PodPolicy
from gpu_runtime.process.settings import BaseSettings
from gpu_runtime.process.shared_settings import (
    BindAddressSettings,
    KubernetesSettings,
    NatsSettings,
    PodPolicySettings,
    PositiveSeconds,
    ProcessSettings,
    TicketSettings,
    WorkerCeiling,
)

NonEmptyName = Annotated[str, Meta(min_length=1, max_length=253)]
ScopeName = Literal["operator", "runtime", "worker"]
"""The names of all scopes. `http/route.py` explains them."""
NonEmptyNames = Annotated[tuple[NonEmptyName, ...], Meta(min_length=1)]


class APINamespaceSettings(BaseSettings, frozen=True, kw_only=True):
    system: NonEmptyName = SYSTEM_NAMESPACE
    """Namespace of the platform. The Operations are in this namespace."""

    stock: NonEmptyName = STOCK_NAMESPACE
    """Namespace of the stock units. The API seeds and claims stock units in this namespace."""

    units: NonEmptyNames = (INSTANCE_NAMESPACE,)
    """Namespaces in which callers can create units and storages. The list must not contain namespaces.stock. If a
    request names no namespace, the API uses the first namespace of this list. The API rejects a request that names a
    namespace outside this list. For each namespace other than runtime-instance, copy the Role and the RoleBinding of
    the runtime API and of the controller manager in runtime-instance."""

    pools: NonEmptyNames = ("default", INSTANCE_NAMESPACE)
    """Namespaces in which callers can create stock pools. If a request names no namespace, the API uses the first
    namespace of this list. The API rejects a request that names a namespace outside this list."""

    def __post_init__(self) -> None:
        if self.stock in self.units:
            raise ValueError(f"units must not name {self.stock}: every unit in the stock namespace is stock")


class APIPodPolicySettings(PodPolicySettings, frozen=True, kw_only=True):
    max_workers_per_function: WorkerCeiling = DEFAULT_WORKER_CEILING
    """Maximum of serverless.maxWorkers in requests. Each worker needs several Kubernetes objects, so the maximum
    limits how much of the storage of etcd one function can use. Set the same value in scaling.maxWorkersPerFunction of
    the activator."""

    @property
    def policy(self) -> PodPolicy:
        return replace(super().policy, max_workers_per_function=self.max_workers_per_function)


class OperationSettings(BaseSettings, frozen=True, kw_only=True):
    retention_seconds: Annotated[float, Meta(ge=600, le=30 * 86400)] = 86400
    """Time in seconds for which a finished operation is retained. During this time, a request with the same operationID
    and the same content is a replay of the operation. After this time, the API evicts the operation, and a new request
    can use the operationID. An operation whose unit still exists is retained for longer."""

    waiting_retention_seconds: Annotated[float, Meta(ge=600, le=86400)] = 600
    """Time in seconds for which an operation that waits for stock is retained, from the start of its last attempt or,
    if it had no attempt, from its creation. After this time, the API evicts the operation, and a new request can use
    the operationID."""

    max_waiting_per_caller: Annotated[int, Meta(ge=1, le=100_000)] = 1000
    """Maximum number of operations of one caller that wait for stock. If there is no stock, the API rejects further
    create requests of this caller with 429. The number is approximate, because each replica counts in its cache."""

    max_retained: Annotated[int, Meta(ge=100, le=1_000_000)] = 20_000
    """Maximum number of retained operations. Operations whose unit exists do not count. If there are more operations
    than this maximum, the API evicts operations of the callers with the most operations. All callers have the same
    share of the maximum. The API evicts no operation of a caller that does not exceed its share. Of each caller, the
    API first evicts the oldest operations that wait for stock, then the oldest finished operations. The API evicts a
    finished operation at the earliest 10 minutes after its end, and a waiting operation at the earliest 10 minutes
    after the start of its last attempt. Before the API evicts an operation, recovery must have cleaned up the claims,
    attachments and objects of the operation."""

    recovery_interval_seconds: PositiveSeconds = 2
    """Interval in seconds at which each replica looks for stalled operations, stale claims and orphaned objects."""

    stalled_after_seconds: PositiveSeconds = 3
    """Time in seconds without progress after which an unfinished operation is stalled. Recovery then resumes the
    operation."""


class InvocationSettings(BaseSettings, frozen=True, kw_only=True):
    default_timeout_seconds: PositiveSeconds = 300
    """Timeout in seconds of an invocation whose request has no timeout. The timeout counts from the acceptance of the
    invocation. The timeout is at most nats.streams.recordRetentionSeconds."""

    max_sync_wait_seconds: PositiveSeconds = 25
    """Maximum time in seconds that the API waits for the result of a synchronous invocation. After this time, the API
    returns 504 with the invocationID, and the invocation continues. The API never waits longer than 90 % of
    limits.requestTimeoutSeconds."""

    result_query_timeout_seconds: PositiveSeconds = 3
    """Timeout in seconds of a query to the result store. After a timeout, the API returns 503."""


class ServiceAccountScopeSettings(BaseSettings, frozen=True, kw_only=True):
    namespace: NonEmptyName
    """Namespace of the service account."""

    name: NonEmptyName
    """Name of the service account."""

    scopes: Annotated[tuple[ScopeName, ...], Meta(min_length=1)]
    """Scopes of the service account: operator, runtime, worker. Only the activator needs the scope worker."""


class AuthenticationSettings(BaseSettings, frozen=True, kw_only=True):
    mode: Literal["required", "off"] = "required"
    """Whether callers must authenticate. required: every request needs a bearer token, except requests for health,
    metrics, the OpenAPI document and Swagger UI. off: no request needs a token, and every caller has every scope. Use
    off only if no other machine can reach the API."""

    token_file: str = ""
    """Path of a YAML file, usually mounted from a Secret. Its key `tokens` is a list of entries with `name`, `scopes`,
    either `token` or `digest`, and optionally `expiresAt`. `gpu-runtime tokens create` creates an entry. The API
    reloads the file when the file changes. The API ignores an invalid entry and uses the other entries. If the path is
    empty, there is no token file."""

    token_file_grace_seconds: Annotated[float, Meta(ge=1, le=86400)] = 300
    """Time in seconds for which the previous tokens stay valid after the token file has disappeared or has become
    invalid. After this time, no token of the file is valid until the file is correct again. If the file is missing or
    invalid when the API starts, the API exits."""

    service_accounts: tuple[ServiceAccountScopeSettings, ...] = ()
    """Service accounts of the cluster whose tokens the API accepts. The API verifies a token with the signing keys of
    the cluster, and then with a TokenReview."""

    audiences: tuple[NonEmptyName, ...] = ("gpu-runtime",)
    """Audiences for tokens of service accounts. The API accepts a token of a service account only if the token has at
    least one of these audiences."""


class RequestLimitSettings(BaseSettings, frozen=True, kw_only=True):
    max_bytes_in_flight: Annotated[int, Meta(ge=2 * 1024 * 1024)] = 64 * 1024 * 1024
    """Maximum size in bytes of the bodies of all requests that each replica processes at a time. If the bodies of
    a caller would have more bytes than are free, the API rejects the request with 429 before it reads the body. So one
    caller can use at most half of the bytes. The process needs up to five times as much memory."""

    requests_per_second: Annotated[float, Meta(ge=0)] = 50
    """Average number of requests per second that each caller may send to each replica. The API rejects further requests
    with 429. 0 means no limit."""

    burst: Annotated[int, Meta(ge=1)] = 200
    """Maximum number of requests that a caller may send to one replica in a burst, after a time without requests.
    During a burst, the rate may exceed requestsPerSecond."""

    max_queued_creates_per_caller: Annotated[int, Meta(ge=1, le=100_000)] = 1000
    """Maximum number of create requests for units that may wait, for each caller and replica. A replica processes 8
    create requests at a time, and 2 more that create workers. It processes the requests of all callers in turn. The API
    rejects further create requests of the caller with 429."""

    anonymous_requests_per_second: Annotated[float, Meta(ge=0)] = 50
    """Average number of requests without a valid token per second that each peer may send to each replica: requests
    that need no token, and requests whose token is missing or not valid. The API rejects further such requests with
    429. The setting burst applies, too. A peer is an IP address, so a gateway is one peer. 0 means no limit."""

    max_connections: Annotated[int, Meta(ge=16, le=100_000)] = 2000
    """Maximum number of connections to each replica. At this number, a new connection replaces the oldest connection
    that has sent no request yet, or the connection that has been idle for the longest time, of the peer with the most
    connections. If every connection has a request in flight, the API closes the new connection."""

    max_connections_per_peer: Annotated[int, Meta(ge=8, le=100_000)] = 1000
    """Maximum number of connections of one peer to each replica. A peer is an IP address, so a gateway is one peer: set
    this to the number of requests that your gateway sends at the same time. At this number, a new connection replaces
    another connection of the same peer, as with maxConnections."""

    request_timeout_seconds: PositiveSeconds = 30
    """Maximum time in seconds to process a request of a caller. After this time, the API returns 503. While a caller
    waits, the timeout of each attempt of a request to Kubernetes is a tenth of this time or
    kubernetes.requestTimeoutSeconds, whichever is shorter."""

    shutdown_delay_seconds: PositiveSeconds = 5
    """Time in seconds for which the API still accepts requests after SIGTERM. During this time, the readiness check
    already fails, so that load balancers can remove the replica. The time must be shorter than
    gracefulShutdownTimeoutSeconds."""


class APIListenerSettings(BindAddressSettings, frozen=True, kw_only=True):
    bind_address: str = ":8080"
    """Address on which the API listens, as host:port. If the host is empty, the API listens on all interfaces."""


class RuntimeAPISettings(ProcessSettings, frozen=True, kw_only=True):
    graceful_shutdown_timeout_seconds: PositiveSeconds = 40
    """Maximum time in seconds from SIGTERM to the end of the process, including limits.shutdownDelaySeconds. The API
    responds to requests in flight within this time. Set this time higher than the sum of limits.shutdownDelaySeconds
    and limits.requestTimeoutSeconds, and lower than terminationGracePeriodSeconds of the pod."""

    api: APIListenerSettings = APIListenerSettings()
    """Address of the HTTP API."""

    kubernetes: KubernetesSettings = KubernetesSettings()
    """Connection to the Kubernetes API server."""

    nats: NatsSettings = NatsSettings()
    """Connection to NATS, and limits of the streams. Only requests for invocations and dead letters need NATS."""

    tickets: TicketSettings = TicketSettings()
    """Keys of invocation tickets. The API signs a ticket for every invocation that it accepts."""

    namespaces: APINamespaceSettings = APINamespaceSettings()
    """Namespaces that the API uses."""

    operations: OperationSettings = OperationSettings()
    """Recovery and retention of operations."""

    invocations: InvocationSettings = InvocationSettings()
    """Timeouts of invocations."""

    authentication: AuthenticationSettings = AuthenticationSettings()
    """Authentication of callers."""

    pods: APIPodPolicySettings = APIPodPolicySettings()
    """Limits of the pods of units and stock pools."""

    limits: RequestLimitSettings = RequestLimitSettings()
    """Limits on requests."""
