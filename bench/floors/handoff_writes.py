"""The floor of a handoff: its five Kubernetes writes in sequence, with plain aiohttp and msgspec.

Four writes come before the response, and one after it.

The content of the writes is the same as in the runtime API, so that the API server and the controller manager have the
same amount of work. The floor does not decide, validate, cache, retry or watch.
"""

from typing import Any

import msgspec

from bench.kube_api import RawKubeClient
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

NAMESPACES_PATH = f"/apis/{GROUP}/{VERSION}/namespaces"
OPERATIONS_PATH = f"{NAMESPACES_PATH}/{SYSTEM_NAMESPACE}/operations"
STOCK_PATH = f"{NAMESPACES_PATH}/{STOCK_NAMESPACE}/gpuunits"
UNITS_PATH = f"{NAMESPACES_PATH}/{INSTANCE_NAMESPACE}/gpuunits"
STRICT_QUERY = "?fieldManager=floor&fieldValidation=Strict"
REQUEST_HASH = 64 * "0"
TIMESTAMP = "2026-01-01T00:00:00Z"


class StockUnit(msgspec.Struct, frozen=True):
    """A stock unit that was read before the first write."""

    name: str
    uid: str
    resource_version: str


async def write_handoff(api: RawKubeClient, request: dict[str, Any], stock: StockUnit) -> None:
    """Create the operation, claim the stock unit, create the unit, and set the operation to Succeeded."""
    operation = await api.create(OPERATIONS_PATH + STRICT_QUERY, _operation(request, stock))
    name, uid = operation["metadata"]["name"], operation["metadata"]["uid"]
    await api.patch(f"{STOCK_PATH}/{stock.name}{STRICT_QUERY}", _claim(request, stock))
    unit = await api.create(UNITS_PATH + STRICT_QUERY, _unit(request, uid, stock))
    result = {"targetUID": unit["metadata"]["uid"], "finishedAt": TIMESTAMP}
    succeeded = _status(operation, request, stock, state="Succeeded", **result)
    await api.patch(f"{OPERATIONS_PATH}/{name}/status{STRICT_QUERY}", succeeded)


async def delete_stock_unit(api: RawKubeClient, stock: StockUnit) -> None:
    options = {"propagationPolicy": "Background", "preconditions": {"uid": stock.uid}}
    await api.delete(f"{STOCK_PATH}/{stock.name}", options)


def _operation(request: dict[str, Any], stock: StockUnit) -> dict[str, Any]:
    spec = {
        "operationID": request["operationID"],
        "type": "CreateUnit",
        "requestHash": REQUEST_HASH,
        "request": msgspec.json.encode(request).decode(),
        "target": {"kind": "GPUUnit", "namespace": INSTANCE_NAMESPACE, "name": request["name"]},
        "stock": _stock_source(request, stock),
    }
    name, labels = operation_name(request["operationID"]), {Label.CREATED_HOUR: TIMESTAMP[:13]}
    return _manifest("Operation", {"name": name, "labels": labels}, spec)


def _status(operation: Any, request: dict[str, Any], stock: StockUnit, **fields: Any) -> dict[str, Any]:
    status = {"stock": _stock_source(request, stock), "attempt": 1, "startedAt": TIMESTAMP, "error": None, **fields}
    return {"metadata": {"resourceVersion": operation["metadata"]["resourceVersion"]}, "status": status}


def _stock_source(request: dict[str, Any], stock: StockUnit) -> dict[str, Any]:
    source = {"namespace": STOCK_NAMESPACE, "name": stock.name, "uid": stock.uid}
    return source | {"memory": request["memory"], "gpu": request["gpu"]}


def _claim(request: dict[str, Any], stock: StockUnit) -> dict[str, Any]:
    annotations = {Annotation.CLAIMED_BY: request["operationID"]}
    return {"metadata": {"resourceVersion": stock.resource_version, "annotations": annotations}}


def _unit(request: dict[str, Any], operation_uid: str, stock: StockUnit) -> dict[str, Any]:
    annotations = {
        Annotation.OPERATION_ID: request["operationID"],
        Annotation.OPERATION_UID: operation_uid,
        Annotation.OPERATION_ATTEMPT: "1",
        Annotation.REQUEST_HASH: REQUEST_HASH,
        Annotation.SOURCE_STOCK_NAME: stock.name,
        Annotation.SOURCE_STOCK_NAMESPACE: STOCK_NAMESPACE,
        Annotation.SOURCE_STOCK_UID: stock.uid,
    }
    spec = {key: value for key, value in request.items() if key not in ("operationID", "name")}
    return _manifest("GPUUnit", {"name": request["name"], "annotations": annotations}, spec)


def _manifest(kind: str, metadata: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind, "metadata": metadata, "spec": spec}
