"""The operation store writes every field of a status, so that no field of an earlier attempt remains."""

from typing import Any, cast

from gpu_runtime.contract.crd.operation import (
    OPERATIONS,
    Operation,
    OperationSpec,
    OperationTarget,
    OperationType,
    SourceStock,
)
from gpu_runtime.contract.operation_transitions import StockSelected
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.process.clock import SystemClock
from gpu_runtime.runtime_api.operations.operation_store import OperationStore
from tests.unit.runtime_api.interleaved_kube import FakeClient, FakeKubeServer, InterleavingScheduler, run_interleaved

KEY = ObjectKey("runtime-system", "op-1")
LARGE = SourceStock(namespace="stock", name="a", uid="a", memory="16Gi", gpu=2, cpu="4", cpu_limit="8", node="node-1")
SMALL = SourceStock(namespace="stock", name="b", uid="b", gpu=1)


async def test_stock_of_the_next_attempt_keeps_nothing_of_the_earlier_stock() -> None:
    server, scheduler = FakeKubeServer(), InterleavingScheduler(0)
    client = cast(KubeClient, FakeClient(server, scheduler, "replica"))
    store = OperationStore(client, KEY.namespace, SystemClock())
    target = OperationTarget(kind="GPUUnit", namespace="batch", name="web")
    spec = OperationSpec(operation_id="make", type=OperationType.CREATE_UNIT, request_hash="0" * 64, target=target)
    manifest: dict[str, Any] = {"metadata": {"name": KEY.name, "namespace": KEY.namespace}, "spec": spec}
    operation: Operation = await run_interleaved(client.create(OPERATIONS, manifest), scheduler)
    for attempt, stock in enumerate((LARGE, SMALL, LARGE), start=1):
        operation = await run_interleaved(store.write(operation, StockSelected(stock)), scheduler)
        assert (operation.status.attempt, operation.status.stock) == (attempt, stock)
