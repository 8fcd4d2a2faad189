"""Builders of units, pools and operations for unit tests."""

from typing import Any

from gpu_runtime.contract.crd.gpu_unit import GPUUnit, GPUUnitSpec, GPUUnitStatus
from gpu_runtime.contract.crd.operation import (
    Operation,
    OperationError,
    OperationSpec,
    OperationState,
    OperationStatus,
    OperationTarget,
    OperationType,
    SourceStock,
)
from gpu_runtime.contract.crd.stock_pool import StockPool, StockPoolSpec, StockPoolStatus
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.kube.meta import ObjectMeta

STOCK = SourceStock(namespace="runtime-stock", name="stock-1", uid="u1")
FAILURE = OperationError(code="conflict", message="the cluster rejects it")


def unit(
    name: str = "u", namespace: str = "runtime-stock", *, phase: str | None = "Ready", claimed: str = "", **spec: Any
) -> GPUUnit:
    annotations = {Annotation.CLAIMED_BY: claimed} if claimed else {}
    return GPUUnit(
        metadata=ObjectMeta(name=name, namespace=namespace, annotations=annotations),
        spec=GPUUnitSpec(**({"spec_name": "g1.1"} | spec)),
        status=GPUUnitStatus(phase=phase),
    )


def pool(name: str = "p", *, available: int = 0, **spec: Any) -> StockPool:
    fields: dict[str, Any] = {"spec_name": "g1.1", "replicas": 1} | spec
    return StockPool(
        metadata=ObjectMeta(name=name, namespace="default"),
        spec=StockPoolSpec(**fields),
        status=StockPoolStatus(available=available),
    )


def operation(
    kind: OperationType = OperationType.SEED_STOCK,
    state: OperationState = OperationState.ACCEPTED,
    request: str = '{"replicas":3}',
    *,
    uid: str = "op-uid",
    recorded_with: SourceStock | None = None,
    **status: Any,
) -> Operation:
    target = OperationTarget(kind="GPUUnit", namespace="runtime-stock")
    return Operation(
        metadata=ObjectMeta(
            name="op-1", namespace="runtime-system", uid=uid, creation_timestamp="2026-01-02T03:04:05Z"
        ),
        spec=OperationSpec(
            operation_id="one",
            type=kind.value,
            request_hash="0" * 64,
            request=request,
            target=target,
            stock=recorded_with,
        ),
        status=OperationStatus(state=state.value, **status),
    )
