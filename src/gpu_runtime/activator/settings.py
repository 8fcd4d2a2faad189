"""The settings of the activator."""

from typing import Annotated

from msgspec import Meta

from gpu_runtime.contract.crd.well_known import STOCK_NAMESPACE, SYSTEM_NAMESPACE
from gpu_runtime.process.settings import Settings
from gpu_runtime.process.shared_settings import Kubernetes, LeaderElection, Nats, ProcessSettings, Seconds

Name = Annotated[str, Meta(min_length=1, max_length=253)]


class Namespaces(Settings, frozen=True, kw_only=True):
    system: Name = SYSTEM_NAMESPACE
    """Where the platform itself runs: the leader's lease and the Operations lie here."""

    stock: Name = STOCK_NAMESPACE
    """Where stock is: GPUUnits in this namespace are neither functions nor workers."""


class API(Settings, frozen=True, kw_only=True):
    url: Annotated[str, Meta(pattern="^https?://")] = "http://runtime-api.runtime-system:8080"
    """The runtime API, which makes workers from stock and takes stock back."""

    token_file: str = ""
    """A file with the token that says who this process is; it needs both scopes. It is read for every request. Empty:
    none."""

    timeout_seconds: Seconds = 10
    """How long one answer may take."""


class Dispatching(Settings, frozen=True, kw_only=True):
    at_once: Annotated[int, Meta(ge=1, le=4096)] = 256
    """How many invocations this replica has in hand at a time."""

    attempts: Annotated[int, Meta(ge=1, le=10_000)] = 50
    """How often an invocation that cannot be dispatched is tried, within its time, before it is a dead letter."""

    unknown_seconds: Annotated[float, Meta(ge=0, le=60)] = 2
    """How long an invocation of a function that is not known here waits: the API may have heard of it before us."""


class Scaling(Settings, frozen=True, kw_only=True):
    pass_seconds: Seconds = 1
    """How often backlogs are read, and functions with work looked at, although nothing was heard of them."""

    at_once: Annotated[int, Meta(ge=1, le=256)] = 16
    """How many functions are looked at at a time."""

    start_seconds: Seconds = 600
    """How long a worker that does not speak counts as one that is coming. After that it is replaced."""

    failed_seconds: Seconds = 60
    """The same for a worker whose unit says that it failed."""

    drain_seconds: Seconds = 2
    """How long a worker may take to answer whether it can go."""

    retry_first_seconds: Seconds = 5
    """How long no worker is made for a function after one of its workers failed. It doubles from failure to failure."""

    retry_longest_seconds: Seconds = 300
    """The longest such pause."""


class Reaping(Settings, frozen=True, kw_only=True):
    pass_seconds: Seconds = 1
    """How often waiting work is looked at."""

    grace_seconds: Seconds = 2
    """How long after its deadline work is left to the worker that may have it in hand."""

    gone_seconds: Seconds = 3
    """How long a function must be missing before the work that waits for it fails."""


class ActivatorSettings(ProcessSettings, frozen=True, kw_only=True):
    kubernetes: Kubernetes = Kubernetes()
    """How Kubernetes is reached."""

    nats: Nats = Nats()
    """How NATS is reached, and what the streams keep."""

    api: API = API()
    """How the runtime API is reached."""

    namespaces: Namespaces = Namespaces()
    """Which namespaces have a meaning."""

    leader_election: LeaderElection = LeaderElection()
    """One activator scales and reaps at a time. All of them dispatch."""

    dispatching: Dispatching = Dispatching()
    """Handing invocations to their functions' queues."""

    scaling: Scaling = Scaling()
    """Making and removing workers."""

    reaping: Reaping = Reaping()
    """Ending what waits for nobody."""
