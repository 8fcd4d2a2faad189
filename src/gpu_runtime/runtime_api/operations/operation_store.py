"""Reads and writes Operation objects, with optimistic concurrency.

The API creates one Operation per operationID. Every status update has a precondition: the resourceVersion of the
Operation that was read.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from gpu_runtime.contract.crd.operation import (
    MAX_RECORDED_REQUEST_LENGTH,
    OPERATIONS,
    Operation,
    OperationError,
    OperationSpec,
    OperationState,
    OperationStatus,
    OperationTarget,
    OperationType,
    SourceStock,
)
from gpu_runtime.contract.crd.well_known import Annotation, Label, operation_name
from gpu_runtime.contract.errors import OperationReused, RuntimeFault, TooLarge
from gpu_runtime.contract.request_hash import canonical_request, request_hash
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.errors import KubeAlreadyExists, KubeNotFound
from gpu_runtime.kube.meta import KubeObject, ObjectKey
from gpu_runtime.runtime_api.clock import Clock, format_timestamp

_STATUS_FIELDS = tuple(each.encode_name for each in msgspec.structs.fields(OperationStatus))


@dataclass(frozen=True)
class RecordedOperation:
    operation: Operation
    new: bool
    """Whether this request created the operation. False for a replay."""


class StaleAttempt(Exception):
    """This process has read an operation that is now stale: another replica has started a later attempt.

    Read the operation again.
    """


class OperationStore:
    def __init__(self, client: KubeClient, namespace: str, clock: Clock) -> None:
        self._client = client
        self._namespace = namespace
        self._clock = clock
        self._committed_uids: set[str] = set()

    async def record(
        self,
        kind: OperationType,
        operation_id: str,
        request: msgspec.Struct,
        target: OperationTarget,
        stock: SourceStock | None = None,
    ) -> RecordedOperation:
        """Create the operation of this operationID, or return the existing one.

        If several replicas create it at the same time, the API server accepts only the first create request. The first
        attempt uses the stock unit in that create request, if any. Raises OperationReused if the existing operation
        has another request.
        """
        text = canonical_request(request)
        if len(text) > MAX_RECORDED_REQUEST_LENGTH:
            raise TooLarge(f"the request has {len(text)} characters; send at most {MAX_RECORDED_REQUEST_LENGTH}")
        spec = OperationSpec(
            operation_id=operation_id,
            type=kind.value,
            request_hash=request_hash(kind, text),
            request=text,
            target=target,
            stock=stock,
        )
        while True:
            try:
                return RecordedOperation(await self._client.create(OPERATIONS, self._manifest(spec)), new=True)
            except KubeAlreadyExists:
                existing = await self.find(operation_id)
            if existing is not None:  # None: the operation was evicted in the meantime, so create it again
                return RecordedOperation(_require_same_request(existing, spec), new=False)

    async def find(self, operation_id: str) -> Operation | None:
        try:
            return await self._client.get(OPERATIONS, self.key(operation_id))
        except KubeNotFound:
            return None

    async def update_status(self, operation: Operation, **changes: Any) -> Operation:
        """Write the status. Raises KubeConflict if the operation has changed since it was read."""
        status = msgspec.structs.replace(operation.effective_status, **changes)
        patch = {"status": _with_nulls(status)}
        return await self._client.merge_patch(
            OPERATIONS,
            operation.metadata.key,
            patch,
            resource_version=operation.metadata.resource_version,
            subresource="status",
        )

    async def mark_succeeded(self, operation: Operation, **created_uids: Any) -> Operation:
        """Mark the operation as succeeded, and record the UIDs of the objects that it created.

        This write commits the operation to exactly these objects.
        """
        state = OperationState.SUCCEEDED.value
        succeeded = await self.update_status(operation, state=state, finished_at=self._now(), **created_uids)
        self._committed_uids |= succeeded.status.created_uids
        return succeeded

    def pop_committed_uids(self) -> set[str]:
        """Return the UIDs of objects that operations of this replica have committed to since the last call.

        Recovery does not need to read the operations of these objects.
        """
        committed, self._committed_uids = self._committed_uids, set()
        return committed

    async def mark_rolling_back(self, operation: Operation, fault: RuntimeFault) -> Operation:
        """Start the rollback. The operation fails after the objects that it created are deleted."""
        error = OperationError(code=fault.code, message=fault.message[:4096])
        return await self.update_status(operation, state=OperationState.ROLLING_BACK.value, error=error)

    async def mark_failed(self, operation: Operation, **changes: Any) -> Operation:
        return await self.update_status(
            operation, state=OperationState.FAILED.value, finished_at=self._now(), **changes
        )

    async def mark_running(self, operation: Operation, **changes: Any) -> Operation:
        started = operation.effective_status.started_at or self._now()
        return await self.update_status(operation, state=OperationState.RUNNING.value, started_at=started, **changes)

    async def select_stock(self, operation: Operation, stock: SourceStock) -> Operation:
        return await self.mark_running(operation, stock=stock, attempt=operation.effective_status.attempt + 1)

    async def reset_to_accepted(self, operation: Operation) -> Operation:
        """Reset the operation to its initial state, without stock. The same request may succeed later."""
        return await self.update_status(operation, state=OperationState.ACCEPTED.value, stock=None)

    def key(self, operation_id: str) -> ObjectKey:
        return ObjectKey(self._namespace, operation_name(operation_id))

    def _manifest(self, spec: OperationSpec) -> dict[str, Any]:
        labels = {Label.CREATED_HOUR: self._clock.now().strftime("%Y-%m-%dT%H")}
        metadata = {"name": operation_name(spec.operation_id), "namespace": self._namespace, "labels": labels}
        return {"metadata": metadata, "spec": msgspec.to_builtins(spec)}

    def _now(self) -> str:
        return format_timestamp(self._clock.now())


def is_finished(status: OperationStatus) -> bool:
    return OperationState(status.state).finished


def is_in_progress(progress: OperationStatus) -> bool:
    """Whether the operation must be resumed: it has selected stock, or it is being rolled back."""
    has_stock, rolling_back = progress.stock is not None, progress.state == OperationState.ROLLING_BACK.value
    return not is_finished(progress) and (has_stock or rolling_back)


def created_by(operation: Operation, created: KubeObject) -> bool:
    """Whether this operation created the object, according to the annotations of the object.

    An earlier operation with the same operationID does not count.
    """
    return created.metadata.annotations.get(Annotation.OPERATION_UID) == operation.metadata.uid


def is_orphan(operation: Operation, created: KubeObject) -> bool:
    """Whether this operation created the object, but has not committed to it and never will."""
    if not created_by(operation, created):
        return False
    if is_finished(operation.status):
        return not operation.status.has_created(created.metadata.uid)
    if operation.spec.type != OperationType.CREATE_UNIT.value:
        return False
    return is_attempt_abandoned(operation, attempt_of(created))


def is_attempt_abandoned(operation: Operation, attempt: int) -> bool:
    """Whether this attempt can never succeed: a later attempt has started, the attempt was reset, or the operation has
    failed. The operation must be a CreateUnit operation that has not succeeded."""
    if is_finished(operation.status):
        return True
    return attempt < operation.effective_status.attempt + (operation.effective_status.stock is None)


def attempt_of(created: KubeObject) -> int:
    """Return the number of the attempt that created the object, or 0 if its annotation is missing or invalid."""
    value = created.metadata.annotations.get(Annotation.OPERATION_ATTEMPT, "")
    return int(value) if value.isdecimal() and len(value) < 10 else 0


def _require_same_request(existing: Operation, requested: OperationSpec) -> Operation:
    if existing.spec.request_hash != requested.request_hash:
        raise OperationReused(
            f"operationID {requested.operation_id} was already used for another request; use a new operationID, or send"
            " the first request unchanged"
        )
    return existing


def _with_nulls(status: OperationStatus) -> dict[str, Any]:
    """Return the status with null for every empty field, because a merge patch does not change omitted fields."""
    fields = msgspec.to_builtins(status)
    return {name: fields.get(name) for name in _STATUS_FIELDS}
