"""The informers of the runtime API and their indexes.

Handlers read from these local informers. Only writes, and reads that must not be stale, go to the API server.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_runtime.contract.crd.function_queue import FUNCTION_QUEUES, FunctionQueue
from gpu_runtime.contract.crd.gpu_storage import GPU_STORAGES, GPUStorage
from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS, GPUUnit, function_request_ids
from gpu_runtime.contract.crd.operation import OPERATION_SUMMARIES, UNFINISHED_SELECTOR, OperationSummary
from gpu_runtime.contract.crd.stock_pool import STOCK_POOLS, StockPool
from gpu_runtime.contract.crd.well_known import MANAGED_BY_SELECTOR, Label
from gpu_runtime.contract.operation_rules import is_claimed
from gpu_runtime.contract.prepared_pods import awaits_unit
from gpu_runtime.kube.builtin_kinds import PODS, Pod
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.codec import ListOptions
from gpu_runtime.kube.informer import Informer
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.runtime_api.settings import APINamespaceSettings

FLAVOR_INDEX = "flavor"
"""Index of units and of pools by namespace and specName."""
UNIT_UID_INDEX = "unit-uid"
"""Index of pods by the UID of their unit."""
POOL_UID_INDEX = "pool-uid"
"""Index of prepared pods by the UID of their pool."""
ATTACHED_INDEX = "attached"
"""Index with a single key, which selects all storages that an operation has attached."""
CLAIMED_INDEX = "claimed"
"""Index with a single key, which selects all stock units, or all prepared pods, that an operation has claimed. A pod
that belongs to its unit does not count. Their number stays small."""
FUNCTION_INDEX = "function"
"""Index of functions by requestID."""
CALLER_INDEX = "caller"
"""Index of unfinished operations by caller."""
OPERATION_UID_INDEX = "operation-uid"
"""Index of unfinished operations by UID."""


@dataclass(frozen=True)
class APIInformers:
    units: Informer[GPUUnit]
    storages: Informer[GPUStorage]
    pools: Informer[StockPool]
    stock_pods: Informer[Pod]
    """Pods in the stock namespace. They show on which node a stock unit reserves its GPUs."""
    prepared_pods: Mapping[str, Informer[Pod]]
    """Pods of adoptable pools, also after a handoff has taken them, by namespace of units."""
    unfinished_operations: Informer[OperationSummary]
    queues: Informer[FunctionQueue]

    @property
    def required(self) -> Sequence[Informer[Any]]:
        """The informers without which the API answers no request."""
        return (self.units, self.storages, self.pools, self.stock_pods, self.unfinished_operations, self.queues)

    @property
    def all(self) -> Sequence[Informer[Any]]:
        return (*self.required, *self.prepared_pods.values())

    @property
    def has_synced(self) -> bool:
        """Whether the API can answer requests. If it may not read the pods of a namespace, it uses no prepared pods in
        this namespace, and everything else works."""
        prepared = all(each.has_synced or each.last_error for each in self.prepared_pods.values())
        return prepared and all(informer.has_synced for informer in self.required)

    def stock_of(self, namespace: str, spec_name: str) -> list[GPUUnit]:
        """The units of this flavor in the namespace."""
        return self.units.store.by_index(FLAVOR_INDEX, _flavor_key(namespace, spec_name))

    def pools_of(self, namespace: str, spec_name: str) -> list[StockPool]:
        """The pools of this flavor in the namespace."""
        return self.pools.store.by_index(FLAVOR_INDEX, _flavor_key(namespace, spec_name))

    def prepared_pods_of(self, pool: StockPool) -> list[Pod]:
        """The pods of the pool. There are none if callers cannot create units in its namespace."""
        informer = self.prepared_pods.get(pool.metadata.namespace)
        return informer.store.by_index(POOL_UID_INDEX, pool.metadata.uid) if informer else []

    def claimed_pods(self) -> list[Pod]:
        """The prepared pods that an operation has claimed, and that no unit has taken yet."""
        return [
            pod
            for informer in self.prepared_pods.values()
            for pod in informer.store.by_index(CLAIMED_INDEX, CLAIMED_INDEX)
        ]

    def node_of(self, unit: GPUUnit) -> str:
        """The node of the stock unit's pod. Empty if the pod is not scheduled."""
        return next((pod.spec.node_name for pod in self.pods_of(unit.metadata.uid) if pod.spec.node_name), "")

    def pods_of(self, stock_uid: str) -> list[Pod]:
        """The pods of the stock unit with this UID."""
        return self.stock_pods.store.by_index(UNIT_UID_INDEX, stock_uid)


def new_informers(client: KubeClient, namespaces: APINamespaceSettings, metrics: KubeMetrics) -> APIInformers:
    """Create the informers with their indexes. The caller runs them."""
    informers = APIInformers(
        units=Informer(client, GPU_UNITS, metrics=metrics),
        storages=Informer(client, GPU_STORAGES, metrics=metrics),
        pools=Informer(client, STOCK_POOLS, metrics=metrics),
        stock_pods=Informer(
            client, PODS, ListOptions(namespaces.stock, label_selector=MANAGED_BY_SELECTOR), metrics=metrics
        ),
        prepared_pods={
            namespace: Informer(
                client,
                PODS,
                ListOptions(namespace, label_selector=f"{MANAGED_BY_SELECTOR},{Label.PREPARED}=true"),
                metrics=metrics,
            )
            for namespace in namespaces.units
        },
        unfinished_operations=Informer(
            client,
            OPERATION_SUMMARIES,
            ListOptions(namespaces.system, field_selector=UNFINISHED_SELECTOR),
            metrics=metrics,
        ),
        queues=Informer(client, FUNCTION_QUEUES, ListOptions(namespaces.system), metrics=metrics),
    )
    informers.units.store.add_index(
        FLAVOR_INDEX, lambda unit: (_flavor_key(unit.metadata.namespace, unit.spec.spec_name),)
    )
    informers.pools.store.add_index(
        FLAVOR_INDEX, lambda pool: (_flavor_key(pool.metadata.namespace, pool.spec.spec_name),)
    )
    for pods in informers.prepared_pods.values():
        pods.store.add_index(POOL_UID_INDEX, lambda pod: _label_values(pod, Label.POOL_UID))
        pods.store.add_index(CLAIMED_INDEX, lambda pod: (CLAIMED_INDEX,) if awaits_unit(pod) else ())
    informers.units.store.add_index(CLAIMED_INDEX, lambda unit: (CLAIMED_INDEX,) if is_claimed(unit) else ())
    informers.units.store.add_index(FUNCTION_INDEX, function_request_ids)
    informers.storages.store.add_index(ATTACHED_INDEX, _attached_values)
    informers.stock_pods.store.add_index(UNIT_UID_INDEX, lambda pod: _label_values(pod, Label.UNIT_UID))
    informers.unfinished_operations.store.add_index(CALLER_INDEX, lambda operation: (operation.spec.caller,))
    informers.unfinished_operations.store.add_index(OPERATION_UID_INDEX, lambda operation: (operation.metadata.uid,))
    return informers


def _flavor_key(namespace: str, spec_name: str) -> str:
    return f"{namespace}/{spec_name}"


def _attached_values(storage: GPUStorage) -> Iterable[str]:
    attachment = storage.spec.attached_to
    return (ATTACHED_INDEX,) if attachment is not None and attachment.operation_uid else ()


def _label_values(pod: Pod, label: str) -> Iterable[str]:
    value = pod.metadata.labels.get(label)
    return (value,) if value else ()
