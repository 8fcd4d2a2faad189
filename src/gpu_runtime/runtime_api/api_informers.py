"""The caches of the runtime API: reads come from here, and only writes and doubts go to the API server."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gpu_runtime.contract.crd.gpu_storage import GPU_STORAGES, GPUStorage
from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS, GPUUnit
from gpu_runtime.contract.crd.operation import UNFINISHED_SELECTOR
from gpu_runtime.contract.crd.stock_pool import STOCK_POOLS, StockPool
from gpu_runtime.contract.crd.well_known import MANAGED_BY_SELECTOR, Annotation, Label
from gpu_runtime.kube.builtin_kinds import PODS, Pod
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.codec import ListOptions
from gpu_runtime.kube.errors import KubeNotFound
from gpu_runtime.kube.informer import Informer
from gpu_runtime.kube.meta import KubeObject, ObjectKey
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.runtime_api.operations.operation_summary import OPERATION_SUMMARIES, OperationSummary
from gpu_runtime.runtime_api.settings import APINamespaceSettings

T = TypeVar("T", bound=KubeObject)

FLAVOR_INDEX = "flavor"
"""Units by namespace and specName."""
UNIT_UID_INDEX = "unit-uid"
"""Pods by the unit they belong to."""
ATTACHED_INDEX = "attached"
"""Storages that an operation has attached, under one value."""
CLAIMED_INDEX = "claimed"
"""Stock that an operation has claimed, under one value: there is never much of it."""

FUNCTION_INDEX = "function"
"""Functions by requestID."""


@dataclass(frozen=True)
class APIInformers:
    units: Informer[GPUUnit]
    storages: Informer[GPUStorage]
    pools: Informer[StockPool]
    stock_pods: Informer[Pod]
    """For the node on which a stock unit holds its GPUs."""
    unfinished_operations: Informer[OperationSummary]
    """Operations that are not finished."""

    @property
    def all(self) -> Sequence[Informer[Any]]:
        return (self.units, self.storages, self.pools, self.stock_pods, self.unfinished_operations)

    @property
    def has_synced(self) -> bool:
        return all(cache.has_synced for cache in self.all)

    @property
    def last_error(self) -> str:
        """Why what is read may be out of date; empty while every watch is open."""
        return next((cache.last_error for cache in self.all if cache.last_error), "")

    def stock_of(self, namespace: str, spec_name: str) -> list[GPUUnit]:
        return self.units.store.by_index(FLAVOR_INDEX, flavor_key(namespace, spec_name))

    def node_of(self, unit: GPUUnit) -> str:
        pods = self.stock_pods.store.by_index(UNIT_UID_INDEX, unit.metadata.uid)
        return next((pod.spec.node_name for pod in pods if pod.spec.node_name), "")


def new_informers(client: KubeClient, namespaces: APINamespaceSettings, metrics: KubeMetrics) -> APIInformers:
    caches = APIInformers(
        units=Informer(client, GPU_UNITS, metrics=metrics),
        storages=Informer(client, GPU_STORAGES, metrics=metrics),
        pools=Informer(client, STOCK_POOLS, metrics=metrics),
        stock_pods=Informer(
            client, PODS, ListOptions(namespaces.stock, label_selector=MANAGED_BY_SELECTOR), metrics=metrics
        ),
        unfinished_operations=Informer(
            client,
            OPERATION_SUMMARIES,
            ListOptions(namespaces.system, field_selector=UNFINISHED_SELECTOR),
            metrics=metrics,
        ),
    )
    caches.units.store.add_index(FLAVOR_INDEX, _flavor_keys)
    caches.units.store.add_index(CLAIMED_INDEX, _claimed_values)
    caches.units.store.add_index(FUNCTION_INDEX, function_request_ids)
    caches.storages.store.add_index(ATTACHED_INDEX, _attached_values)
    caches.stock_pods.store.add_index(UNIT_UID_INDEX, _unit_uids)
    return caches


async def read_live(client: KubeClient, cache: Informer[T], key: ObjectKey) -> T | None:
    """The object as it is now, of which the cache takes note; None where there is none."""
    try:
        found = await client.get(cache.resource, key)
    except KubeNotFound:
        return None
    cache.record_write(found)
    return found


def flavor_key(namespace: str, spec_name: str) -> str:
    return f"{namespace}/{spec_name}"


def function_request_ids(unit: GPUUnit) -> Iterable[str]:
    """The requestID of a unit that is a function and stays one."""
    function = unit.spec.serverless
    if function is None or not unit.spec.is_function or unit.metadata.deletion_timestamp is not None:
        return ()
    return (function.request_id,)


def _flavor_keys(unit: GPUUnit) -> Iterable[str]:
    return (flavor_key(unit.metadata.namespace, unit.spec.spec_name),)


def _claimed_values(unit: GPUUnit) -> Iterable[str]:
    return (CLAIMED_INDEX,) if Annotation.CLAIMED_BY in unit.metadata.annotations else ()


def _attached_values(storage: GPUStorage) -> Iterable[str]:
    held = storage.spec.attached_to
    return (ATTACHED_INDEX,) if held is not None and held.operation_id else ()


def _unit_uids(pod: Pod) -> Iterable[str]:
    uid = pod.metadata.labels.get(Label.UNIT_UID)
    return (uid,) if uid else ()
