"""The settings of the runtime API."""

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
    """Where the platform itself runs: the Operations lie here."""

    stock: NonEmptyName = STOCK_NAMESPACE
    """Where stock is seeded, and taken from."""

    units: NonEmptyNames = (INSTANCE_NAMESPACE,)
    """Where units and storages may be made. The first one is meant where a request names none."""

    pools: NonEmptyNames = ("default",)
    """Where pools may be made. The first one is meant where a request names none."""

    def __post_init__(self) -> None:
        if self.stock in self.units:
            raise ValueError(f"units must not name {self.stock}: a unit in the stock namespace is stock")


class OperationSettings(BaseSettings, frozen=True, kw_only=True):
    retention_seconds: Annotated[float, Meta(ge=60, le=30 * 86400)] = 86400
    """How long a finished operation is remembered: for so long its operationID means this one request."""

    max_retained: Annotated[int, Meta(ge=100, le=1_000_000)] = 20_000
    """How many operations are remembered. Beyond that the oldest finished ones are forgotten before their time."""

    recovery_interval_seconds: PositiveSeconds = 2
    """How often a replica looks for what others left half-done."""

    stalled_after_seconds: PositiveSeconds = 3
    """After how long without progress an operation is taken for left behind."""


class InvocationSettings(BaseSettings, frozen=True, kw_only=True):
    default_timeout_seconds: PositiveSeconds = 300
    """How long after its acceptance an invocation's answer counts, where the caller does not say it."""

    max_sync_wait_seconds: PositiveSeconds = 25
    """How long a synchronous call waits for the answer at most, before it is answered with 504 and the invocationID.
    It never waits longer than limits.requestTimeoutSeconds allows."""

    result_query_timeout_seconds: PositiveSeconds = 3
    """How long the result store may take to answer a look-up."""


class ServiceAccountScopeSettings(BaseSettings, frozen=True, kw_only=True):
    namespace: NonEmptyName
    """The service account's namespace."""

    name: NonEmptyName
    """The service account."""

    scopes: Annotated[tuple[Literal["operator", "runtime"], ...], Meta(min_length=1)]
    """What it is trusted with."""


class AuthenticationSettings(BaseSettings, frozen=True, kw_only=True):
    mode: Literal["required", "off"] = "required"
    """required, or off: everybody may do everything. For a machine that nobody else can reach."""

    token_file: str = ""
    """A YAML file, mounted from a Secret, with `tokens`: a list of `name`, `token` and `scopes`. It is read again when
    it changes."""

    service_accounts: tuple[ServiceAccountScopeSettings, ...] = ()
    """Service accounts of the cluster whose tokens are taken, too."""

    audiences: tuple[NonEmptyName, ...] = ("gpu-runtime",)
    """What a service account's token must have been made for."""


class RequestLimitSettings(BaseSettings, frozen=True, kw_only=True):
    max_request_bytes: Annotated[int, Meta(ge=1024, le=1024 * 1024)] = 768 * 1024
    """The largest body that is taken. The largest payload of an invocation, 512 KiB, fits as base64, too."""

    requests_per_second: Annotated[float, Meta(ge=0)] = 50
    """How many requests each caller may make per second, on average and on each replica. 0: as many as it likes."""

    burst: Annotated[int, Meta(ge=1)] = 200
    """How many it may make at once."""

    request_timeout_seconds: PositiveSeconds = 30
    """How long a request may take before it is answered with 503. One attempt at Kubernetes may take a tenth of it."""

    shutdown_delay_seconds: PositiveSeconds = 5
    """How long requests are still taken after readiness went false, until every load balancer has noticed."""


class APIListenerSettings(BindAddressSettings, frozen=True, kw_only=True):
    bind_address: str = ":8080"
    """Where the API listens, as host:port. Without a host: on every interface."""


class RuntimeAPISettings(ProcessSettings, frozen=True, kw_only=True):
    graceful_shutdown_timeout_seconds: PositiveSeconds = 40
    """How long requests in flight may take after SIGTERM, the drain included. Keep it above shutdownDelaySeconds and
    requestTimeoutSeconds together, and below the pod's termination grace period."""

    api: APIListenerSettings = APIListenerSettings()
    """The API itself."""

    kubernetes: KubernetesSettings = KubernetesSettings()
    """How Kubernetes is reached."""

    nats: NatsSettings = NatsSettings()
    """How NATS is reached, and what is kept there. Only invocations and dead letters need it."""

    namespaces: APINamespaceSettings = APINamespaceSettings()
    """Which namespaces have a meaning."""

    operations: OperationSettings = OperationSettings()
    """How operations are finished and kept."""

    invocations: InvocationSettings = InvocationSettings()
    """How invocations are taken."""

    authentication: AuthenticationSettings = AuthenticationSettings()
    """Who may call."""

    limits: RequestLimitSettings = RequestLimitSettings()
    """How much a caller may ask for."""
