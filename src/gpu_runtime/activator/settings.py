"""The settings of the activator."""

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
    """Where the platform itself runs: the leader's lease and the Operations lie here."""

    stock: NamespaceName = STOCK_NAMESPACE
    """Where stock is: GPUUnits in this namespace are neither functions nor workers."""


class RuntimeAPIClientSettings(BaseSettings, frozen=True, kw_only=True):
    url: Annotated[str, Meta(pattern="^https?://")] = "http://runtime-api.runtime-system:8080"
    """The runtime API, which makes workers from stock and takes stock back."""

    token_file: str = ""
    """A file with the token that says who this process is; it needs both scopes. It is read for every request. Empty:
    none."""

    request_timeout_seconds: PositiveSeconds = 10
    """How long one answer may take."""


class DispatchSettings(BaseSettings, frozen=True, kw_only=True):
    max_in_flight: Annotated[int, Meta(ge=1, le=4096)] = 256
    """How many invocations this replica has in hand at a time."""

    max_deliveries: Annotated[int, Meta(ge=1, le=10_000)] = 50
    """How often an invocation that cannot be dispatched is tried, within its time, before it is a dead letter."""

    unknown_function_grace_seconds: Annotated[float, Meta(ge=0, le=60)] = 2
    """How long an invocation of a function that is not known here waits: the API may have heard of it before us."""


class ScalingSettings(BaseSettings, frozen=True, kw_only=True):
    poll_interval_seconds: PositiveSeconds = 1
    """How often backlogs are read, and functions with work looked at, although nothing was heard of them."""

    max_concurrent_reconciles: Annotated[int, Meta(ge=1, le=256)] = 16
    """How many functions are looked at at a time."""

    worker_liveness_timeout_seconds: PositiveSeconds = 600
    """How long a worker that does not speak counts as one that is coming. After that it is replaced."""

    failed_worker_grace_seconds: PositiveSeconds = 60
    """The same for a worker whose unit says that it failed."""

    drain_request_timeout_seconds: PositiveSeconds = 2
    """How long a worker may take to answer whether it can go."""

    initial_backoff_seconds: PositiveSeconds = 5
    """How long no worker is made for a function after one of its workers failed. It doubles from failure to failure."""

    max_backoff_seconds: PositiveSeconds = 300
    """The longest such pause."""


class ReaperSettings(BaseSettings, frozen=True, kw_only=True):
    poll_interval_seconds: PositiveSeconds = 1
    """How often waiting work is looked at."""

    deadline_grace_seconds: PositiveSeconds = 2
    """How long after its deadline work is left to the worker that may have it in hand."""

    deleted_function_grace_seconds: PositiveSeconds = 3
    """How long a function must be missing before the work that waits for it fails."""


class ActivatorSettings(ProcessSettings, frozen=True, kw_only=True):
    kubernetes: KubernetesSettings = KubernetesSettings()
    """How Kubernetes is reached."""

    nats: NatsSettings = NatsSettings()
    """How NATS is reached, and what the streams keep."""

    runtime_api: RuntimeAPIClientSettings = field(default=RuntimeAPIClientSettings(), name="runtimeAPI")
    """How the runtime API is reached."""

    namespaces: ActivatorNamespaceSettings = ActivatorNamespaceSettings()
    """Which namespaces have a meaning."""

    leader_election: LeaderElectionSettings = LeaderElectionSettings()
    """One activator scales and reaps at a time. All of them dispatch."""

    dispatching: DispatchSettings = DispatchSettings()
    """Handing invocations to their functions' queues."""

    scaling: ScalingSettings = ScalingSettings()
    """Making and removing workers."""

    reaping: ReaperSettings = ReaperSettings()
    """Ending what waits for nobody."""
