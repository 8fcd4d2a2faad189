"""Settings of the runtime API. The field docstrings are the comments in the sample settings file."""

from typing import Annotated, Literal

from msgspec import Meta

from gpu_runtime.contract.crd.well_known import INSTANCE_NAMESPACE, STOCK_NAMESPACE, SYSTEM_NAMESPACE
from gpu_runtime.process.settings import BaseSettings
from gpu_runtime.process.shared_settings import (
    BindAddressSettings,
    KubernetesSettings,
    NatsSettings,
    PodPolicySettings,
    PositiveSeconds,
    ProcessSettings,
)

NonEmptyName = Annotated[str, Meta(min_length=1, max_length=253)]
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


class OperationSettings(BaseSettings, frozen=True, kw_only=True):
    retention_seconds: Annotated[float, Meta(ge=600, le=30 * 86400)] = 86400
    """Time in seconds for which a finished operation is retained. During this time, a request with the same operationID
    and the same content is a replay of the operation. After this time, the API evicts the operation, and a new request
    can use the operationID. The API also evicts an operation that waits for stock, when this time has passed since the
    start of its last attempt."""

    max_retained: Annotated[int, Meta(ge=100, le=1_000_000)] = 20_000
    """Maximum number of retained operations. If there are more operations than this maximum, the API evicts the oldest
    finished operations before the end of retentionSeconds. If there are still too many operations, the API evicts the
    oldest operations that wait for stock. The API evicts a finished operation at the earliest 10 minutes after its end.
    The API evicts a waiting operation at the earliest 10 minutes after the start of its last attempt. Before the API
    evicts an operation, recovery must have cleaned up the claims, attachments and objects of the operation."""

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

    scopes: Annotated[tuple[Literal["operator", "runtime"], ...], Meta(min_length=1)]
    """Scopes of the service account: operator, runtime or both."""


class AuthenticationSettings(BaseSettings, frozen=True, kw_only=True):
    mode: Literal["required", "off"] = "required"
    """Whether callers must authenticate. required: every request needs a bearer token, except requests for health,
    metrics, the OpenAPI document and Swagger UI. off: no request needs a token, and every caller has every scope. Use
    off only if no other machine can reach the API."""

    token_file: str = ""
    """Path of a YAML file, usually mounted from a Secret. Its key `tokens` is a list of objects with `name`, `token`
    and `scopes`. The API reloads the file when the file changes. If the new file is invalid, the previous tokens stay
    valid. If the path is empty, there is no token file."""

    service_accounts: tuple[ServiceAccountScopeSettings, ...] = ()
    """Service accounts of the cluster whose tokens the API accepts. The API verifies the tokens with a TokenReview."""

    audiences: tuple[NonEmptyName, ...] = ("gpu-runtime",)
    """Audiences for tokens of service accounts. The API accepts a token of a service account only if the token has at
    least one of these audiences."""


class RequestLimitSettings(BaseSettings, frozen=True, kw_only=True):
    max_request_bytes: Annotated[int, Meta(ge=1024, le=1024 * 1024)] = 768 * 1024
    """Maximum size of a request body in bytes. The API rejects a larger body with 413. The default is large enough for
    every invocation: the largest payload has 512 KiB, which are 683 KiB in base64."""

    requests_per_second: Annotated[float, Meta(ge=0)] = 50
    """Average number of requests per second that each caller may send to each replica. The API rejects further requests
    with 429. 0 means no limit."""

    burst: Annotated[int, Meta(ge=1)] = 200
    """Maximum number of requests that a caller may send to one replica in a burst, after a time without requests.
    During a burst, the rate may exceed requestsPerSecond."""

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

    namespaces: APINamespaceSettings = APINamespaceSettings()
    """Namespaces that the API uses."""

    operations: OperationSettings = OperationSettings()
    """Recovery and retention of operations."""

    invocations: InvocationSettings = InvocationSettings()
    """Timeouts of invocations."""

    authentication: AuthenticationSettings = AuthenticationSettings()
    """Authentication of callers."""

    pods: PodPolicySettings = PodPolicySettings()
    """Limits of the pods of units and stock pools."""

    limits: RequestLimitSettings = RequestLimitSettings()
    """Limits on requests."""
