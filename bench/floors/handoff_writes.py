"""The floor of a handoff: its five writes, one after the other, with aiohttp and msgspec and nothing between: four
before the answer, and one after it.

What is written is what the runtime API writes, so that the API server has as much to check and the controller manager
as much to do. Nothing is decided, validated, cached, retried or watched.
"""

from typing import Any

import msgspec

from bench.kube_api import Bare
from gpu_runtime.contract.crd.well_known import (
    GROUP,
    INSTANCE_NAMESPACE,
    STOCK_NAMESPACE,
    SYSTEM_NAMESPACE,
    VERSION,
    Annotation,
    Label,
    operation_name,
)

API = f"/apis/{GROUP}/{VERSION}/namespaces"
OPERATIONS = f"{API}/{SYSTEM_NAMESPACE}/operations"
STOCK = f"{API}/{STOCK_NAMESPACE}/gpuunits"
UNITS = f"{API}/{INSTANCE_NAMESPACE}/gpuunits"
STRICTLY = "?fieldManager=floor&fieldValidation=Strict"
HASH = 64 * "0"
NOW = "2026-01-01T00:00:00Z"


class Stock(msgspec.Struct, frozen=True):
    """A stock unit as it was read before the first of the writes."""

    name: str
    uid: str
    version: str


async def handed_over(api: Bare, request: dict[str, Any], stock: Stock) -> None:
    """Record, claim, make, commit."""
    operation = await api.create(OPERATIONS + STRICTLY, _operation(request, stock))
    name, uid = operation["metadata"]["name"], operation["metadata"]["uid"]
    await api.patch(f"{STOCK}/{stock.name}{STRICTLY}", _claim(request, stock))
    unit = await api.create(UNITS + STRICTLY, _unit(request, uid, stock))
    made = {"targetUID": unit["metadata"]["uid"], "finishedAt": NOW}
    succeeded = _status(operation, request, stock, state="Succeeded", **made)
    await api.patch(f"{OPERATIONS}/{name}/status{STRICTLY}", succeeded)


async def cleared_up(api: Bare, stock: Stock) -> None:
    options = {"propagationPolicy": "Background", "preconditions": {"uid": stock.uid}}
    await api.delete(f"{STOCK}/{stock.name}", options)


def _operation(request: dict[str, Any], stock: Stock) -> dict[str, Any]:
    spec = {
        "operationID": request["operationID"],
        "type": "CreateUnit",
        "requestHash": HASH,
        "request": msgspec.json.encode(request).decode(),
        "target": {"kind": "GPUUnit", "namespace": INSTANCE_NAMESPACE, "name": request["name"]},
        "stock": _source(request, stock),
    }
    name, labels = operation_name(request["operationID"]), {Label.RECORDED: NOW[:13]}
    return _manifest("Operation", {"name": name, "labels": labels}, spec)


def _status(operation: Any, request: dict[str, Any], stock: Stock, **said: Any) -> dict[str, Any]:
    status = {"stock": _source(request, stock), "attempt": 1, "startedAt": NOW, "error": None, **said}
    return {"metadata": {"resourceVersion": operation["metadata"]["resourceVersion"]}, "status": status}


def _source(request: dict[str, Any], stock: Stock) -> dict[str, Any]:
    source = {"namespace": STOCK_NAMESPACE, "name": stock.name, "uid": stock.uid}
    return source | {"memory": request["memory"], "gpu": request["gpu"]}


def _claim(request: dict[str, Any], stock: Stock) -> dict[str, Any]:
    annotations = {Annotation.CLAIMED_BY: request["operationID"]}
    return {"metadata": {"resourceVersion": stock.version, "annotations": annotations}}


def _unit(request: dict[str, Any], operation_uid: str, stock: Stock) -> dict[str, Any]:
    annotations = {
        Annotation.OPERATION_ID: request["operationID"],
        Annotation.OPERATION_UID: operation_uid,
        Annotation.OPERATION_ATTEMPT: "1",
        Annotation.REQUEST_HASH: HASH,
        Annotation.SOURCE_STOCK_NAME: stock.name,
        Annotation.SOURCE_STOCK_NAMESPACE: STOCK_NAMESPACE,
        Annotation.SOURCE_STOCK_UID: stock.uid,
    }
    spec = {key: value for key, value in request.items() if key not in ("operationID", "name")}
    return _manifest("GPUUnit", {"name": request["name"], "annotations": annotations}, spec)


def _manifest(kind: str, metadata: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind, "metadata": metadata, "spec": spec}
