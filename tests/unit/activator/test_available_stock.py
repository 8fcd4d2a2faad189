"""The activator counts exactly the stock that the runtime API would hand over, so it leaves no open Operation."""

from typing import Any, cast

import msgspec
import pytest

from gpu_runtime.activator.function_lister import FunctionLister
from gpu_runtime.contract.crd.gpu_unit import GPUUnit, GPUUnitSpec, GPUUnitStatus
from gpu_runtime.contract.crd.operation import (
    Operation,
    OperationSpec,
    OperationState,
    OperationStatus,
    OperationTarget,
    OperationType,
)
from gpu_runtime.contract.crd.template import Template
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.contract.recorded_requests import RecordedUnitRequest
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.errors import ApiStatus, KubeNotFound
from gpu_runtime.kube.meta import ObjectKey, ObjectMeta
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.process.clock import SystemClock
from gpu_runtime.runtime_api.api_informers import new_informers
from gpu_runtime.runtime_api.operations.operation_store import OperationStore
from gpu_runtime.runtime_api.settings import APINamespaceSettings
from gpu_runtime.runtime_api.units.stock_selector import StockSelector

ACCEPTED, RUNNING, ROLLING_BACK, SUCCEEDED, FAILED = OperationState
SEEDED = {Annotation.OPERATION_ID: "seed", Annotation.OPERATION_UID: "op-uid"}


def stock(phase: str = "Ready", **annotations: str) -> GPUUnit:
    metadata = ObjectMeta(name="stock-1", namespace="runtime-stock", uid="u1", annotations=annotations)
    return GPUUnit(metadata=metadata, spec=GPUUnitSpec(spec_name="g1.1"), status=GPUUnitStatus(phase=phase))


def seeding(state: OperationState, *uids: str, uid: str = "op-uid") -> Operation:
    target = OperationTarget(kind="GPUUnit", namespace="runtime-stock")
    spec = OperationSpec(operation_id="seed", type=OperationType.SEED_STOCK, request_hash="", target=target)
    return Operation(metadata=ObjectMeta(uid=uid), spec=spec, status=OperationStatus(state=state, stock_uids=uids))


class OperationReader:
    """A client that reads one operation, or finds none. It counts its reads."""

    def __init__(self, operation: Operation | None) -> None:
        self.operation = operation
        self.reads = 0

    def with_options(self, *_: Any, **__: Any) -> "OperationReader":
        return self

    async def get(self, _resource: Any, _key: ObjectKey) -> Operation:
        self.reads += 1
        if self.operation is None:
            raise KubeNotFound(ApiStatus(code=404, message="none"))
        return self.operation


CASES: dict[str, tuple[GPUUnit, Operation | None, bool]] = {
    "created by an administrator": (stock(), None, True),
    "not ready": (stock("Progressing"), None, False),
    "claimed": (stock(**{Annotation.CLAIMED_BY: "other"}), None, False),
    "seeded": (stock(**SEEDED), seeding(SUCCEEDED, "u1"), True),
    "seeding accepted": (stock(**SEEDED), seeding(ACCEPTED), False),
    "seeding runs": (stock(**SEEDED), seeding(RUNNING), False),
    "seeding runs and has recorded the stock unit": (stock(**SEEDED), seeding(RUNNING, "u1"), False),
    "seeding is rolled back": (stock(**SEEDED), seeding(ROLLING_BACK, "u1"), False),
    "seeding failed": (stock(**SEEDED), seeding(FAILED), False),
    "created again after its seeding": (stock(**SEEDED), seeding(SUCCEEDED, "u0"), False),
    "seeding evicted": (stock(**SEEDED), None, True),
    "operationID of an evicted seeding used again": (stock(**SEEDED), seeding(RUNNING, uid="later"), True),
}


@pytest.mark.parametrize(("unit", "operation", "is_free"), CASES.values(), ids=CASES)
async def test_activator_and_runtime_api_agree_on_free_stock(
    unit: GPUUnit, operation: Operation | None, is_free: bool
) -> None:
    client = cast(KubeClient, OperationReader(operation))
    functions = FunctionLister(client, "runtime-stock")
    functions.units.store.put(unit)
    assert await functions.available_stock(GPUUnitSpec(spec_name="g1.1"), 5) == is_free
    informers = new_informers(client, APINamespaceSettings(), KubeMetrics())
    informers.units.store.put(unit)
    selector = StockSelector(informers, OperationStore(client, "runtime-system", SystemClock()))
    request = RecordedUnitRequest(
        operation_id="o", name="web", spec_name="g1.1", stock_namespace="runtime-stock", image="python"
    )
    assert ((await selector.hold(request)).stock is not None) is is_free


async def test_finished_seeding_is_read_once_and_only_as_much_stock_as_needed_is_checked() -> None:
    client = OperationReader(seeding(SUCCEEDED, "u0", "u1", "u2"))
    functions = FunctionLister(cast(KubeClient, client), "runtime-stock")
    for number in range(3):
        metadata = ObjectMeta(name=f"stock-{number}", namespace="runtime-stock", uid=f"u{number}", annotations=SEEDED)
        functions.units.store.put(msgspec.structs.replace(stock(), metadata=metadata))
    assert await functions.available_stock(GPUUnitSpec(spec_name="g1.1"), 2) == 2
    assert await functions.available_stock(GPUUnitSpec(spec_name="g1.1"), 5) == 3
    assert client.reads == 1


async def test_stock_that_is_too_small_for_the_shared_memory_does_not_count() -> None:
    """The runtime API would refuse it, and the worker would never be created without stock."""
    functions = FunctionLister(cast(KubeClient, OperationReader(None)), "runtime-stock")
    small = msgspec.structs.replace(stock(), spec=GPUUnitSpec(spec_name="g1.1", memory="8Gi"))
    functions.units.store.put(small)
    needy = GPUUnitSpec(spec_name="g1.1", template=Template(shared_memory="16Gi"))
    fitting = GPUUnitSpec(spec_name="g1.1", template=Template(shared_memory="8Gi"))
    assert await functions.available_stock(needy, 1) == 0
    assert await functions.available_stock(fitting, 1) == 1
