"""Reads and writes Operation objects, with optimistic concurrency.

The API creates one Operation per operationID. Every status update has a precondition: the resourceVersion of the
Operation that was read.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from gpu_runtime.contract.crd.operation import (
    MAX_CALLER_LENGTH,
    OPERATIONS,
    Operation,
    OperationSpec,
    OperationStatus,
    OperationTarget,
    OperationType,
    SourceStock,
)
from gpu_runtime.contract.crd.well_known import Label, created_hour, operation_name
from gpu_runtime.contract.errors import OperationReused, Unavailable
from gpu_runtime.contract.operation_transitions import Committed, Transition, next_status
from gpu_runtime.contract.recorded_requests import OPERATION_TYPES, RecordedRequest
from gpu_runtime.contract.request_hash import canonical_request, request_hash
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.errors import KubeAlreadyExists, KubeNotFound
from gpu_runtime.kube.live_objects import find_live
from gpu_runtime.kube.meta import Manifest, ObjectKey
from gpu_runtime.process.clock import Clock, format_timestamp

_STATUS_FIELDS = tuple(each.encode_name for each in msgspec.structs.fields(OperationStatus))
_STOCK_FIELDS = tuple(each.encode_name for each in msgspec.structs.fields(SourceStock))


@dataclass(frozen=True)
class RecordedOperation:
    operation: Operation
    new: bool
    """Whether this request created the operation. False for a replay."""


class OperationStore:
    def __init__(self, client: KubeClient, namespace: str, clock: Clock) -> None:
        self._client = client
        self._namespace = namespace
        self._clock = clock
        self._committed_uids: set[str] = set()

    async def record(
        self,
        request: RecordedRequest,
        target: OperationTarget,
        stock: SourceStock | None = None,
        *,
        caller: str = "",
    ) -> RecordedOperation:
        """Create the operation of this request, or return the existing one.

        If several replicas create it at the same time, the API server accepts only the first create request. The first
        attempt uses the stock unit in that create request, if any. A create operation without stock records only the
        hash of its request: it waits for its caller, who sends the request again. Raises OperationReused if the
        existing operation has another request.
        """
        kind, text = OPERATION_TYPES[type(request)], canonical_request(request)
        spec = OperationSpec(
            operation_id=request.operation_id,
            type=kind.value,
            request_hash=request_hash(kind, text),
            caller=caller[:MAX_CALLER_LENGTH],
            request=text if stock is not None or kind is not OperationType.CREATE_UNIT else "",
            target=target,
            stock=stock,
        )
        while True:
            try:
                return RecordedOperation(await self._client.create(OPERATIONS, self._manifest(spec)), new=True)
            except KubeAlreadyExists:
                existing = await self.find(request.operation_id)
            if existing is not None:  # None: the operation was evicted in the meantime, so create it again
                return RecordedOperation(_require_same_request(existing, spec), new=False)

    async def find(self, operation_id: str) -> Operation | None:
        return await find_live(self._client, OPERATIONS, self.key(operation_id))

    async def reload(self, operation: Operation) -> Operation:
        """Read the same operation again. Another operation with its operationID is not the same.

        Raises Unavailable if the operation was evicted.
        """
        current = await self.find(operation.spec.operation_id)
        if current is None or current.metadata.uid != operation.metadata.uid:
            raise _evicted(operation)
        return current

    async def write(self, operation: Operation, transition: Transition) -> Operation:
        """Write the status after the transition. Raises KubeConflict if the operation has changed since it was read.

        A Committed transition commits the operation to exactly its objects.
        """
        kind, now = OperationType(operation.spec.type), format_timestamp(self._clock.now())
        status = next_status(kind, operation.effective_status, transition, now)
        key, version = operation.metadata.key, operation.metadata.resource_version
        patch = {"status": _with_nulls(status)}
        try:
            written = await self._client.merge_patch(
                OPERATIONS, key, patch, resource_version=version, subresource="status"
            )
        except KubeNotFound as error:
            raise _evicted(operation) from error
        if isinstance(transition, Committed):
            self._committed_uids.update(transition.uids)
        return written

    def pop_committed_uids(self) -> set[str]:
        """Return the UIDs of objects that operations of this replica have committed to since the last call.

        Recovery does not need to read the operations of these objects.
        """
        committed, self._committed_uids = self._committed_uids, set()
        return committed

    def key(self, operation_id: str) -> ObjectKey:
        return ObjectKey(self._namespace, operation_name(operation_id))

    def _manifest(self, spec: OperationSpec) -> Manifest:
        labels = {Label.CREATED_HOUR: created_hour(self._clock.now())}
        metadata = {"name": operation_name(spec.operation_id), "namespace": self._namespace, "labels": labels}
        return {"metadata": metadata, "spec": msgspec.to_builtins(spec)}


def _require_same_request(existing: Operation, requested: OperationSpec) -> Operation:
    if existing.spec.request_hash != requested.request_hash:
        raise OperationReused(
            f"operationID {requested.operation_id} was already used for another request; use a new operationID, or send"
            " the first request unchanged"
        )
    return existing


def _evicted(operation: Operation) -> Unavailable:
    return Unavailable(f"operation {operation.spec.operation_id} was deleted; send the request again")


def _with_nulls(status: OperationStatus) -> dict[str, Any]:
    """Return the status with null for every empty field, because a merge patch does not change omitted fields.

    This includes the fields of the stock. Otherwise the next attempt would keep a field of the earlier stock unit.
    """
    fields = msgspec.to_builtins(status)
    if status.stock is not None:
        fields["stock"] = {name: fields["stock"].get(name) for name in _STOCK_FIELDS}
    return {name: fields.get(name) for name in _STATUS_FIELDS}
