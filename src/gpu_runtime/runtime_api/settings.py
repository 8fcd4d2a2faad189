"""The settings of the runtime API process. The field docstrings are the comments in the sample settings file."""

from typing import Annotated, Literal

from msgspec import Meta

from gpu_runtime.contract.crd.well_known import INSTANCE_NAMESPACE, STOCK_NAMESPACE, SYSTEM_NAMESPACE
from gpu_runtime.process.settings import BaseSettings
from gpu_runtime.process.shared_settings import (
    BindAddressSettings,
    KubernetesSettings,
    NatsSettings,
    PositiveSeconds,
    ProcessSettings,
)

NonEmptyName = Annotated[str, Meta(min_length=1, max_length=253)]
NonEmptyNames = Annotated[tuple[NonEmptyName, ...], Meta(min_length=1)]


class APINamespaceSettings(BaseSettings, frozen=True, kw_only=True):
    system: NonEmptyName = SYSTEM_NAMESPACE
    """The namespace of the platform itself. Operation objects are stored here."""

    stock: NonEmptyName = STOCK_NAMESPACE
    """The namespace in which stock units are seeded, and from which they are claimed."""

    units: NonEmptyNames = (INSTANCE_NAMESPACE,)
    """The namespaces in which units and storages may be created. The first one is the default for requests that name
    none. A request for another namespace is rejected."""

    pools: NonEmptyNames = ("default",)
    """The namespaces in which stock pools may be created. The first one is the default for requests that name none. A
    request for another namespace is rejected."""

    def __post_init__(self) -> None:
        if self.stock in self.units:
            raise ValueError(f"units must not name {self.stock}: every unit in the stock namespace is stock")


class OperationSettings(BaseSettings, frozen=True, kw_only=True):
    retention_seconds: Annotated[float, Meta(ge=60, le=30 * 86400)] = 86400
    """How long a finished operation is retained. During this time a request with the same operationID is a replay of
    the operation. After it the operation is evicted, and the operationID can be used for a new request. An operation
    that waits for stock is evicted when its age exceeds this time."""

    max_retained: Annotated[int, Meta(ge=100, le=1_000_000)] = 20_000
    """How many operations are retained. Above this limit the oldest finished operations are evicted before the end of
    retentionSeconds, then the oldest operations that wait for stock."""

    recovery_interval_seconds: PositiveSeconds = 2
    """How often each replica looks for stalled operations, stale claims and orphaned objects."""

    stalled_after_seconds: PositiveSeconds = 3
    """How long an operation may be without progress before recovery takes it for stalled and resumes it."""


class InvocationSettings(BaseSettings, frozen=True, kw_only=True):
    default_timeout_seconds: PositiveSeconds = 300
    """The timeout of an invocation, from its acceptance to its result, if the request has no timeout. It is limited to
    the maximum timeout of invocations and to the retention of invocation records."""

    max_sync_wait_seconds: PositiveSeconds = 25
    """The maximum time that a synchronous invocation waits for its result. After it the API answers 504 with the
    invocationID, and the invocation continues. The wait is never longer than 90 % of limits.requestTimeoutSeconds."""

    result_query_timeout_seconds: PositiveSeconds = 3
    """The timeout of a query to the result store. After it the API answers 503."""


class ServiceAccountScopeSettings(BaseSettings, frozen=True, kw_only=True):
    namespace: NonEmptyName
    """The namespace of the service account."""

    name: NonEmptyName
    """The name of the service account."""

    scopes: Annotated[tuple[Literal["operator", "runtime"], ...], Meta(min_length=1)]
    """The scopes that the service account has: operator, runtime or both."""


class AuthenticationSettings(BaseSettings, frozen=True, kw_only=True):
    mode: Literal["required", "off"] = "required"
    """required: requests need a bearer token. Only health, metrics, the OpenAPI document and Swagger UI are open. off:
    every caller has every scope. Use off only if no other machine can reach the API."""

    token_file: str = ""
    """A YAML file, mounted from a Secret, with `tokens`: a list of `name`, `token` and `scopes`. The file is reloaded
    when it changes. If the new file is invalid, the previous tokens stay valid. Empty: no token file."""

    service_accounts: tuple[ServiceAccountScopeSettings, ...] = ()
    """Service accounts of the cluster whose tokens are accepted. The API verifies their tokens with a TokenReview."""

    audiences: tuple[NonEmptyName, ...] = ("gpu-runtime",)
    """The audiences that are accepted in a service account's token. The token must have at least one of them."""


class RequestLimitSettings(BaseSettings, frozen=True, kw_only=True):
    max_request_bytes: Annotated[int, Meta(ge=1024, le=1024 * 1024)] = 768 * 1024
    """The maximum size of a request body. A larger body is rejected with 413. The default fits the largest payload of
    an invocation, 512 KiB, encoded as base64."""

    requests_per_second: Annotated[float, Meta(ge=0)] = 50
    """The average number of requests per second that each caller may send to each replica. Further requests are
    rejected with 429. 0: no limit."""

    burst: Annotated[int, Meta(ge=1)] = 200
    """The number of requests that a caller may send in one burst, above the average rate."""

    request_timeout_seconds: PositiveSeconds = 30
    """The maximum time to process a request. After it the API answers 503. One attempt of a Kubernetes request may take
    a tenth of this time."""

    shutdown_delay_seconds: PositiveSeconds = 5
    """How long the API accepts requests after SIGTERM, while its readiness check already fails. Load balancers need
    this time to remove the replica."""


class APIListenerSettings(BindAddressSettings, frozen=True, kw_only=True):
    bind_address: str = ":8080"
    """The address on which the API listens, as host:port. Without a host: on every interface."""


class RuntimeAPISettings(ProcessSettings, frozen=True, kw_only=True):
    graceful_shutdown_timeout_seconds: PositiveSeconds = 40
    """The maximum time from SIGTERM to the end of the process, including limits.shutdownDelaySeconds. Requests in
    flight are answered within this time. Keep it above the sum of limits.shutdownDelaySeconds and
    limits.requestTimeoutSeconds, and below the pod's termination grace period."""

    api: APIListenerSettings = APIListenerSettings()
    """The listener of the API."""

    kubernetes: KubernetesSettings = KubernetesSettings()
    """The connection to Kubernetes."""

    nats: NatsSettings = NatsSettings()
    """The connection to NATS, and the limits of its streams. Only invocations and dead letters need NATS."""

    namespaces: APINamespaceSettings = APINamespaceSettings()
    """The namespaces that the API uses."""

    operations: OperationSettings = OperationSettings()
    """The recovery and the retention of operations."""

    invocations: InvocationSettings = InvocationSettings()
    """The timeouts of invocations."""

    authentication: AuthenticationSettings = AuthenticationSettings()
    """Which callers may use the API."""

    limits: RequestLimitSettings = RequestLimitSettings()
    """The limits on requests."""
