"""The stock selector finds the warmest stock that fits, also if concurrent requests hold and release stock."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from gpu_runtime.contract.crd.gpu_unit import Access, GPUUnit, Serverless, StorageMount
from gpu_runtime.contract.crd.operation import Operation, SourceStock
from gpu_runtime.contract.crd.probes import Probes, ReadinessProbe
from gpu_runtime.contract.crd.stock_pool import StockPool
from gpu_runtime.contract.crd.template import Port, Template
from gpu_runtime.contract.crd.well_known import Annotation, Label
from gpu_runtime.contract.prepared_units import prepared_unit
from gpu_runtime.contract.recorded_requests import RecordedUnitRequest
from gpu_runtime.contract.stock_grades import StockGrade, StockMiss, prepared_for
from gpu_runtime.kube.builtin_kinds import Pod
from gpu_runtime.kube.store import Store
from gpu_runtime.runtime_api.api_informers import OPERATION_UID_INDEX, APIInformers
from gpu_runtime.runtime_api.operations.operation_store import OperationStore
from gpu_runtime.runtime_api.units.stock_selector import StockOffer, StockSelector


@dataclass
class FakeStock:
    """Informers with this stock and no unfinished operation, and an operation store whose reads block."""

    stock: list[GPUUnit]
    pools: list[StockPool] = field(default_factory=list)
    pods: list[Pod] = field(default_factory=list)
    lookup_started: asyncio.Event = field(default_factory=asyncio.Event)
    lookup_may_finish: asyncio.Event = field(default_factory=asyncio.Event)
    store: Store[Any] = field(default_factory=Store)

    def __post_init__(self) -> None:
        self.store.add_index(OPERATION_UID_INDEX, lambda operation: (operation.metadata.uid,))

    @property
    def unfinished_operations(self) -> "FakeStock":
        return self

    def stock_of(self, _namespace: str, spec_name: str) -> list[GPUUnit]:
        return [unit for unit in self.stock if unit.spec.spec_name == spec_name]

    def pools_of(self, namespace: str, spec_name: str) -> list[StockPool]:
        found = [pool for pool in self.pools if pool.metadata.namespace == namespace]
        return [pool for pool in found if pool.spec.spec_name == spec_name]

    def prepared_pods_of(self, pool: StockPool) -> list[Pod]:
        return [pod for pod in self.pods if pod.metadata.labels[Label.POOL_UID] == pool.metadata.uid]

    def node_of(self, _unit: GPUUnit) -> str:
        return "node-1"

    async def find(self, operation_id: str) -> Operation:
        self.lookup_started.set()
        await self.lookup_may_finish.wait()
        return running_operation(operation_id)

    def selector(self) -> StockSelector:
        return StockSelector(cast(APIInformers, self), cast(OperationStore, self))


def ready_stock(name: str, **annotations: str) -> GPUUnit:
    metadata = {"name": name, "namespace": "stock", "uid": f"uid-{name}", "annotations": annotations}
    return msgspec.convert({"metadata": metadata, "spec": {"specName": "g1"}, "status": {"phase": "Ready"}}, GPUUnit)


def stock_being_seeded(name: str) -> GPUUnit:
    return ready_stock(name, **{Annotation.OPERATION_ID: "seeding", Annotation.OPERATION_UID: "uid-seeding"})


def running_operation(operation_id: str) -> Operation:
    target = {"kind": "GPUUnit", "namespace": "stock"}
    spec = {"operationID": operation_id, "type": "SeedStock", "requestHash": "", "target": target}
    document = {"metadata": {"uid": f"uid-{operation_id}"}, "spec": spec, "status": {"state": "Running"}}
    return msgspec.convert(document, Operation)


REQUEST = RecordedUnitRequest(
    operation_id="make",
    name="web",
    namespace="batch",
    spec_name="g1",
    stock_namespace="stock",
    image="python",
    template=Template(command=("serve",)),
)
NOTHING_FITS = {StockGrade.PREPARED: StockMiss.NO_POOL, StockGrade.RESERVED: StockMiss.NONE_READY}


def warm_pool(name: str = "warm", **spec: Any) -> StockPool:
    fields = {"specName": "g1", "image": "python", "replicas": 1, "template": {"command": ["serve"]}, "adoptable": True}
    metadata = {"name": name, "namespace": "batch", "uid": f"uid-{name}"}
    return msgspec.convert({"metadata": metadata, "spec": fields | spec}, StockPool)


def prepared_pod(name: str, pool: StockPool, **metadata: Any) -> Pod:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "pool-warm-1", "uid": "r", "controller": True}
    fields = {
        "name": name,
        "namespace": "batch",
        "uid": f"uid-{name}",
        "labels": {Label.POOL_UID: pool.metadata.uid},
        "annotations": {Annotation.PREPARED_FOR: prepared_for(prepared_unit(pool.spec))},
        "ownerReferences": [owner],
    }
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    document = {"metadata": fields | metadata, "spec": {"nodeName": "node-2"}, "status": ready}
    return msgspec.convert(document, Pod)


async def test_every_stock_unit_is_held_once() -> None:
    selector = FakeStock([ready_stock(f"unit-{number}") for number in range(20)]).selector()
    offers = [await selector.hold(REQUEST) for _ in range(20)]
    assert len({offer.stock.uid for offer in offers if offer.stock}) == 20


async def test_empty_stock_without_holds_returns_none() -> None:
    assert await FakeStock([]).selector().hold(REQUEST) == StockOffer(None, NOTHING_FITS)


async def test_stock_released_during_a_candidate_check_is_selected() -> None:
    fake = FakeStock([ready_stock("free")])
    selector = fake.selector()
    first = (await selector.hold(REQUEST)).stock
    assert first
    fake.stock.append(stock_being_seeded("unfinished"))
    second = asyncio.create_task(selector.hold(REQUEST))
    await fake.lookup_started.wait()
    selector.release_hold(first.uid)
    fake.lookup_may_finish.set()
    async with asyncio.timeout(60):
        held = (await second).stock
    assert held is not None
    assert held.name == "free"


async def test_selector_waits_for_held_stock() -> None:
    selector = FakeStock([ready_stock("only")]).selector()
    first = (await selector.hold(REQUEST)).stock
    assert first
    second = asyncio.create_task(selector.hold(REQUEST))
    await asyncio.sleep(0)
    assert not second.done()
    selector.release_hold(first.uid)
    async with asyncio.timeout(60):
        assert (await second).stock


async def test_prepared_pod_is_preferred_to_a_stock_unit() -> None:
    pool = warm_pool(gpu=2, memory="1Gi")
    offer = await FakeStock([ready_stock("unit")], [pool], [prepared_pod("pod", pool)]).selector().hold(REQUEST)
    assert offer.stock == SourceStock(
        namespace="batch", name="pod", uid="uid-pod", node="node-2", pool="warm", gpu=2, memory="1Gi"
    )


async def test_held_prepared_pod_leaves_the_next_grade_to_another_request() -> None:
    pool = warm_pool()
    selector = FakeStock([ready_stock("unit")], [pool], [prepared_pod("pod", pool)]).selector()
    first, second = [await selector.hold(REQUEST) for _ in range(2)]
    assert first.stock
    assert first.stock.pool == "warm"
    assert second.stock
    assert (second.stock.name, second.stock.missed) == ("unit", "none ready")


@pytest.mark.parametrize(
    ("grades", "name", "missed"), [(("reserved",), "unit", ""), (("prepared",), "pod", ""), ((), "pod", "")]
)
async def test_request_can_restrict_the_grades(grades: tuple[str, ...], name: str, missed: str) -> None:
    pool = warm_pool()
    selector = FakeStock([ready_stock("unit")], [pool], [prepared_pod("pod", pool)]).selector()
    offer = await selector.hold(replace(REQUEST, grades=grades))
    assert offer.stock
    assert (offer.stock.name, offer.stock.missed) == (name, missed)


RESTARTED = {"containerStatuses": [{"name": "main", "restartCount": 1}]}
READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
UNUSABLE: dict[str, dict[str, Any]] = {
    "terminating": {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
    "claimed": {"metadata": {"annotations": {Annotation.CLAIMED_BY: "other"}}},
    "without owner": {"metadata": {"ownerReferences": []}},
    "of an earlier template": {"metadata": {"annotations": {Annotation.PREPARED_FOR: "old"}}},
    "not ready": {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}},
    "restarted": {"status": READY | RESTARTED},
    "init container restarted": {"status": READY | {"initContainerStatuses": [{"name": "init", "restartCount": 1}]}},
}


@pytest.mark.parametrize("change", UNUSABLE.values(), ids=UNUSABLE)
async def test_unusable_prepared_pod_is_never_held(change: dict[str, Any]) -> None:
    pool = warm_pool()
    pod = msgspec.to_builtins(prepared_pod("pod", pool))
    pod["metadata"] |= change.get("metadata", {})
    pod["status"] = change.get("status", pod["status"])
    selector = FakeStock([], [pool], [msgspec.convert(pod, Pod)]).selector()
    missed = {StockGrade.PREPARED: StockMiss.NONE_READY, StockGrade.RESERVED: StockMiss.NONE_READY}
    assert await selector.hold(REQUEST) == StockOffer(None, missed)


DIFFERENT: dict[str, tuple[dict[str, Any], dict[str, Any], StockMiss]] = {
    "not adoptable": ({"adoptable": False}, {}, StockMiss.NO_POOL),
    "placeholder": ({"template": {}}, {"template": Template()}, StockMiss.NO_POOL),
    "storages": ({}, {"storage_mounts": (StorageMount(name="a", mount_path="/a"),)}, StockMiss.STORAGE_MOUNTS),
    "function": ({}, {"serverless": Serverless(enabled=True, request_id="f")}, StockMiss.FUNCTION),
    "image": ({}, {"image": "python:3"}, StockMiss.IMAGE_DIFFERS),
    "arguments": ({}, {"template": Template(command=("serve",), args=("--fast",))}, StockMiss.TEMPLATE_DIFFERS),
    "access": ({}, {"access": Access(scheme="https")}, StockMiss.TEMPLATE_DIFFERS),
    "probes": ({}, {"probes": Probes(readiness=ReadinessProbe(disabled=True))}, StockMiss.TEMPLATE_DIFFERS),
}


@pytest.mark.parametrize(("spec", "request_fields", "miss"), DIFFERENT.values(), ids=DIFFERENT)
async def test_pod_is_not_held_for_another_unit(
    spec: dict[str, Any], request_fields: dict[str, Any], miss: StockMiss
) -> None:
    pool = warm_pool(**spec)
    selector = FakeStock([ready_stock("unit")], [pool], [prepared_pod("pod", pool)]).selector()
    offer = await selector.hold(replace(REQUEST, **request_fields))
    assert offer.stock
    assert (offer.stock.name, offer.stock.missed) == ("unit", miss.value)


async def test_pool_made_with_kubectl_matches_a_normalized_request() -> None:
    ports = [{"name": "http", "port": 80}]
    template = {"command": ["serve"], "ports": ports, "sharedMemory": "1024Mi"}
    pool = warm_pool(image=" python ", template=template, access={}, memory="2048Mi")
    requested = Template(command=("serve",), ports=(Port(name="http", port=80, protocol="TCP"),), shared_memory="1Gi")
    selector = FakeStock([], [pool], [prepared_pod("pod", pool)]).selector()
    offer = await selector.hold(replace(REQUEST, template=requested))
    assert offer.stock
    assert offer.stock.name == "pod"


async def test_nearest_reason_of_several_pools_is_reported() -> None:
    pools = [warm_pool("other", image="busybox"), warm_pool("near", template={"command": ["sleep"]})]
    offer = await FakeStock([], pools).selector().hold(REQUEST)
    assert offer.missed[StockGrade.PREPARED] is StockMiss.TEMPLATE_DIFFERS
