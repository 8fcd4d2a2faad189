"""Builds the manifests of pools and stock units, and checks which operation created them. Pure functions."""

import msgspec

from gpu_runtime.contract.crd.operation import Operation
from gpu_runtime.contract.crd.well_known import Annotation, stock_unit_name
from gpu_runtime.kube.meta import KubeObject, Manifest, ObjectKey
from gpu_runtime.runtime_api.operations.request_codec import decode_request
from gpu_runtime.runtime_api.stock.requests import CreateStockPool, SeedStock

POOL_REQUEST_DECODER = msgspec.json.Decoder(CreateStockPool)
SEED_REQUEST_DECODER = msgspec.json.Decoder(SeedStock)


def pool_manifest(operation: Operation) -> Manifest:
    request = decode_request(operation, POOL_REQUEST_DECODER)
    return _manifest(operation, ObjectKey(request.namespace, request.name), request.spec())


def stock_manifest(operation: Operation, index: int) -> Manifest:
    request = decode_request(operation, SEED_REQUEST_DECODER)
    return _manifest(operation, stock_key(operation, index), request.spec())


def stock_key(operation: Operation, index: int) -> ObjectKey:
    return ObjectKey(operation.spec.target.namespace, stock_unit_name(operation.spec.operation_id, index))


def is_created_by(created: KubeObject, operation: Operation) -> bool:
    """Whether this operation created the object. An evicted operation with the same operationID does not count."""
    return created.metadata.annotations.get(Annotation.OPERATION_UID) == operation.metadata.uid


def matches_request(created: KubeObject, operation: Operation) -> bool:
    """Whether the same request with the same operationID created the object.

    Only the annotations of the object decide, because the operation that created it may have been evicted.
    """
    annotations = created.metadata.annotations
    return (
        annotations.get(Annotation.OPERATION_ID) == operation.spec.operation_id
        and annotations.get(Annotation.REQUEST_HASH) == operation.spec.request_hash
    )


def _manifest(operation: Operation, key: ObjectKey, spec: msgspec.Struct) -> Manifest:
    annotations = {
        Annotation.OPERATION_ID: operation.spec.operation_id,
        Annotation.OPERATION_UID: operation.metadata.uid,
        Annotation.REQUEST_HASH: operation.spec.request_hash,
    }
    metadata = {"namespace": key.namespace, "name": key.name, "annotations": annotations}
    return {"metadata": metadata, "spec": msgspec.to_builtins(spec)}
