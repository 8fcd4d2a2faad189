"""The settings of the runtime API."""

from typing import Annotated, Literal

from msgspec import Meta

from gpu_runtime.contract.crd.well_known import INSTANCE_NAMESPACE, STOCK_NAMESPACE, SYSTEM_NAMESPACE
from gpu_runtime.process.settings import Settings
from gpu_runtime.process.shared_settings import Endpoints, Kubernetes, Nats, ProcessSettings, Seconds

Name = Annotated[str, Meta(min_length=1, max_length=253)]
Names = Annotated[tuple[Name, ...], Meta(min_length=1)]


class Namespaces(Settings, frozen=True, kw_only=True):
    system: Name = SYSTEM_NAMESPACE
    """Where the platform itself runs: the Operations lie here."""

    stock: Name = STOCK_NAMESPACE
    """Where stock is seeded, and taken from."""

    units: Names = (INSTANCE_NAMESPACE,)
    """Where units and storages may be made. The first one is meant where a request names none."""

    pools: Names = ("default",)
    """Where pools may be made. The first one is meant where a request names none."""

    def __post_init__(self) -> None:
        if self.stock in self.units:
            raise ValueError(f"units must not name {self.stock}: a unit in the stock namespace is stock")


class Operations(Settings, frozen=True, kw_only=True):
    retention_seconds: Annotated[float, Meta(ge=60, le=30 * 86400)] = 86400
    """How long a finished operation is remembered: for so long its operationID means this one request."""

    most: Annotated[int, Meta(ge=100, le=1_000_000)] = 20_000
    """How many operations are remembered. Beyond that the oldest finished ones are forgotten before their time."""

    sweep_seconds: Seconds = 2
    """How often a replica looks for what others left half-done."""

    orphaned_seconds: Seconds = 3
    """After how long without progress an operation is taken for left behind."""


class Invocations(Settings, frozen=True, kw_only=True):
    timeout_seconds: Seconds = 300
    """How long after its acceptance an invocation's answer counts, where the caller does not say it."""

    sync_wait_seconds: Seconds = 25
    """How long a synchronous call waits for the answer at most, before it is answered with 504 and the invocationID.
    It never waits longer than limits.requestSeconds allows."""

    store_seconds: Seconds = 3
    """How long the result store may take to answer a look-up."""


class ServiceAccountScopes(Settings, frozen=True, kw_only=True):
    namespace: Name
    """The service account's namespace."""

    name: Name
    """The service account."""

    scopes: Annotated[tuple[Literal["operator", "runtime"], ...], Meta(min_length=1)]
    """What it is trusted with."""


class Authentication(Settings, frozen=True, kw_only=True):
    mode: Literal["required", "off"] = "required"
    """required, or off: everybody may do everything. For a machine that nobody else can reach."""

    token_file: str = ""
    """A YAML file, mounted from a Secret, with `tokens`: a list of `name`, `token` and `scopes`. It is read again when
    it changes."""

    service_accounts: tuple[ServiceAccountScopes, ...] = ()
    """Service accounts of the cluster whose tokens are taken, too."""

    audiences: tuple[Name, ...] = ("gpu-runtime",)
    """What a service account's token must have been made for."""


class Limits(Settings, frozen=True, kw_only=True):
    body_bytes: Annotated[int, Meta(ge=1024, le=1024 * 1024)] = 768 * 1024
    """The largest body that is taken. The largest payload of an invocation, 512 KiB, fits as base64, too."""

    requests_per_second: Annotated[float, Meta(ge=0)] = 50
    """How many requests each caller may make per second, on average and on each replica. 0: as many as it likes."""

    burst: Annotated[int, Meta(ge=1)] = 200
    """How many it may make at once."""

    request_seconds: Seconds = 30
    """How long a request may take before it is answered with 503. One attempt at Kubernetes may take a tenth of it."""

    drain_seconds: Seconds = 5
    """How long requests are still taken after readiness went false, until every load balancer has noticed."""


class Listener(Endpoints, frozen=True, kw_only=True):
    bind: str = ":8080"
    """Where the API listens, as host:port. Without a host: on every interface."""


class RuntimeAPISettings(ProcessSettings, frozen=True, kw_only=True):
    stop_grace_seconds: Seconds = 40
    """How long requests in flight may take after SIGTERM, the drain included. Keep it above drainSeconds and
    requestSeconds together, and below the pod's termination grace period."""

    api: Listener = Listener()
    """The API itself."""

    kubernetes: Kubernetes = Kubernetes()
    """How Kubernetes is reached."""

    nats: Nats = Nats()
    """How NATS is reached, and what is kept there. Only invocations and dead letters need it."""

    namespaces: Namespaces = Namespaces()
    """Which namespaces have a meaning."""

    operations: Operations = Operations()
    """How operations are finished and kept."""

    invocations: Invocations = Invocations()
    """How invocations are taken."""

    authentication: Authentication = Authentication()
    """Who may call."""

    limits: Limits = Limits()
    """How much a caller may ask for."""
