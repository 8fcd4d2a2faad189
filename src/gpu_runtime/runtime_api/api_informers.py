"""The caches of the runtime API: reads come from here, and only writes and doubts go to the API server."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gpu_runtime.contract.crd.gpu_storage import GPU_STORAGES, GPUStorage
from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS, GPUUnit
from gpu_runtime.contract.crd.operation import UNFINISHED_SELECTOR
from gpu_runtime.contract.crd.stock_pool import STOCK_POOLS, StockPool
from gpu_runtime.contract.crd.well_known import OWNED_SELECTOR, Annotation, Label
from gpu_runtime.kube.builtin_kinds import PODS, Pod
from gpu_runtime.kube.client import Client
from gpu_runtime.kube.codec import Selection
from gpu_runtime.kube.errors import NotFound
from gpu_runtime.kube.informer import Informer
from gpu_runtime.kube.meta import Key, Object
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.runtime_api.operations.operation_summary import PENDING_OPERATIONS, PendingOperation
from gpu_runtime.runtime_api.settings import Namespaces

T = TypeVar("T", bound=Object)

FLAVOUR = "flavour"
"""Units by namespace and specName."""
UNIT_UID = "unit-uid"
"""Pods by the unit they belong to."""
ATTACHED = "attached"
"""Storages that an operation has attached, under one value."""
CLAIMED = "claimed"
"""Stock that an operation has claimed, under one value: there is never much of it."""

FUNCTION = "function"
"""Functions by requestID."""


@dataclass(frozen=True)
class Caches:
    units: Informer[GPUUnit]
    storages: Informer[GPUStorage]
    pools: Informer[StockPool]
    stock_pods: Informer[Pod]
    """For the node on which a stock unit holds its GPUs."""
    pending: Informer[PendingOperation]
    """Operations that are not finished."""

    @property
    def all(self) -> Sequence[Informer[Any]]:
        return (self.units, self.storages, self.pools, self.stock_pods, self.pending)

    @property
    def have_synced(self) -> bool:
        return all(cache.has_synced for cache in self.all)

    @property
    def trouble(self) -> str:
        """Why what is read may be out of date; empty while every watch is open."""
        return next((cache.trouble for cache in self.all if cache.trouble), "")

    def stock_of(self, namespace: str, spec_name: str) -> list[GPUUnit]:
        return self.units.store.by(FLAVOUR, flavour(namespace, spec_name))

    def node_of(self, unit: GPUUnit) -> str:
        pods = self.stock_pods.store.by(UNIT_UID, unit.metadata.uid)
        return next((pod.spec.node_name for pod in pods if pod.spec.node_name), "")


def open_caches(client: Client, namespaces: Namespaces, metrics: KubeMetrics) -> Caches:
    caches = Caches(
        units=Informer(client, GPU_UNITS, metrics=metrics),
        storages=Informer(client, GPU_STORAGES, metrics=metrics),
        pools=Informer(client, STOCK_POOLS, metrics=metrics),
        stock_pods=Informer(client, PODS, Selection(namespaces.stock, labels=OWNED_SELECTOR), metrics=metrics),
        pending=Informer(
            client, PENDING_OPERATIONS, Selection(namespaces.system, fields=UNFINISHED_SELECTOR), metrics=metrics
        ),
    )
    caches.units.store.index_by(FLAVOUR, _flavours)
    caches.units.store.index_by(CLAIMED, _claimed)
    caches.units.store.index_by(FUNCTION, functions_of)
    caches.storages.store.index_by(ATTACHED, _attached)
    caches.stock_pods.store.index_by(UNIT_UID, _unit_uids)
    return caches


async def read_live(client: Client, cache: Informer[T], key: Key) -> T | None:
    """The object as it is now, of which the cache takes note; None where there is none."""
    try:
        found = await client.get(cache.resource, key)
    except NotFound:
        return None
    cache.learn(found)
    return found


def flavour(namespace: str, spec_name: str) -> str:
    return f"{namespace}/{spec_name}"


def functions_of(unit: GPUUnit) -> Iterable[str]:
    """The requestID of a unit that is a function and stays one."""
    function = unit.spec.serverless
    if function is None or not unit.spec.is_function or unit.metadata.deletion_timestamp is not None:
        return ()
    return (function.request_id,)


def _flavours(unit: GPUUnit) -> Iterable[str]:
    return (flavour(unit.metadata.namespace, unit.spec.spec_name),)


def _claimed(unit: GPUUnit) -> Iterable[str]:
    return (CLAIMED,) if Annotation.CLAIMED_BY in unit.metadata.annotations else ()


def _attached(storage: GPUStorage) -> Iterable[str]:
    held = storage.spec.attached_to
    return (ATTACHED,) if held is not None and held.operation_id else ()


def _unit_uids(pod: Pod) -> Iterable[str]:
    uid = pod.metadata.labels.get(Label.UNIT_UID)
    return (uid,) if uid else ()
