"""The settings of the controller manager."""

from typing import Annotated

from msgspec import Meta

from gpu_runtime.contract.crd.names import STOCK_NAMESPACE, SYSTEM_NAMESPACE
from gpu_runtime.process.sections import Kubernetes, LeaderElection, ProcessSettings, Seconds
from gpu_runtime.process.settings import Settings

Name = Annotated[str, Meta(min_length=1, max_length=253)]
WorkerCount = Annotated[int, Meta(ge=1, le=256)]


class Namespaces(Settings, frozen=True, kw_only=True):
    system: Name = SYSTEM_NAMESPACE
    """Where the platform itself runs: the leader's lease lies here."""

    stock: Name = STOCK_NAMESPACE
    """GPUUnits in this namespace are stock; in any other namespace they are active."""


class Images(Settings, frozen=True, kw_only=True):
    stock: Name
    """The platform's own image, which stock units run."""

    placeholder: Name
    """The image of StockPools that name none. It must have a shell and `sleep`."""


class Workers(Settings, frozen=True, kw_only=True):
    gpu_units: WorkerCount = 16
    """How many GPUUnits are reconciled at a time."""

    gpu_storages: WorkerCount = 4
    """How many GPUStorages are reconciled at a time."""

    stock_pools: WorkerCount = 4
    """How many StockPools are reconciled at a time."""


class PodSecurity(Settings, frozen=True, kw_only=True):
    require_non_root: bool = False
    """Whether users' images must run as another user than root. Images that do not are then refused at start."""


class ControllerManagerSettings(ProcessSettings, frozen=True, kw_only=True):
    kubernetes: Kubernetes = Kubernetes()
    """How Kubernetes is reached."""

    namespaces: Namespaces = Namespaces()
    """Which namespaces have a meaning."""

    leader_election: LeaderElection = LeaderElection()
    """One controller manager works at a time; others stand by."""

    images: Images
    """Images that the platform itself brings."""

    workers: Workers = Workers()
    """How much is done at a time."""

    pod_security: PodSecurity = PodSecurity()
    """What is demanded of users' containers beyond the default: seccomp, no privilege escalation, no token."""

    cluster_domain: Name = "cluster.local"
    """The DNS domain of the cluster, as it appears in access URLs."""

    resync_seconds: Seconds = 600
    """How often every object is looked at again although nothing was heard of it."""
