"""The records themselves: written once, changed only by whoever read the version that is changed."""

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
    """Whether this request was the first under its operationID."""


class StaleAttempt(Exception):
    """What was read of a record is no longer so: somebody else is at a later attempt. Read it again."""


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
        """The one operation under this operationID. The API server makes the second writer lose, on every replica: the
        first attempt is that of the stock that the first writer has chosen, if any."""
        text = canonical_request(request)
        if len(text) > MAX_RECORDED_REQUEST_LENGTH:
            raise TooLarge(
                f"the request has {len(text)} characters; an operation records at most {MAX_RECORDED_REQUEST_LENGTH}"
            )
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
                found = await self.find(operation_id)
            if found is not None:  # else it was forgotten in between
                return RecordedOperation(_require_same_request(found, spec), new=False)

    async def find(self, operation_id: str) -> Operation | None:
        try:
            return await self._client.get(OPERATIONS, self.key(operation_id))
        except KubeNotFound:
            return None

    async def update_status(self, operation: Operation, **changes: Any) -> Operation:
        """Write the next state, if nobody else has written one since; otherwise Conflict."""
        status = msgspec.structs.replace(operation.effective_status, **changes)
        patch = {"status": _with_nulls(status)}
        return await self._client.merge_patch(
            OPERATIONS,
            operation.metadata.key,
            patch,
            resource_version=operation.metadata.resource_version,
            subresource="status",
        )

    async def mark_succeeded(self, operation: Operation, **made: Any) -> Operation:
        """With the UIDs of what was made: the operation commits to these objects and no others."""
        state = OperationState.SUCCEEDED.value
        succeeded = await self.update_status(operation, state=state, finished_at=self._now(), **made)
        self._committed_uids |= succeeded.status.created_uids
        return succeeded

    def pop_committed_uids(self) -> set[str]:
        """The UIDs that operations have committed to here since this was last asked: of these nobody need read."""
        committed, self._committed_uids = self._committed_uids, set()
        return committed

    async def mark_rolling_back(self, operation: Operation, fault: RuntimeFault) -> Operation:
        """From here the operation can only fail: whatever it made is undone first."""
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
        """To the beginning: nothing is claimed, and the same request may succeed later."""
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
    """Whether somebody must end it: it has chosen stock, or has something to undo."""
    chosen, gives_up = progress.stock is not None, progress.state == OperationState.ROLLING_BACK.value
    return not is_finished(progress) and (chosen or gives_up)


def created_by(operation: Operation, found: KubeObject) -> bool:
    """Whether the object says that this very operation made it, and not an earlier one of the same operationID."""
    return found.metadata.annotations.get(Annotation.OPERATION_UID) == operation.metadata.uid


def is_orphan(operation: Operation, made: KubeObject) -> bool:
    """Whether an object says that this operation made it, which is not so and never will be."""
    if not created_by(operation, made):
        return False
    if is_finished(operation.status):
        return not operation.status.has_created(made.metadata.uid)
    if operation.spec.type != OperationType.CREATE_UNIT.value:
        return False
    return is_attempt_abandoned(operation, attempt_of(made))


def is_attempt_abandoned(operation: Operation, attempt: int) -> bool:
    """Whether an attempt of a CreateUnit operation that has not succeeded will come to nothing."""
    if is_finished(operation.status):
        return True
    return attempt < operation.effective_status.attempt + (operation.effective_status.stock is None)


def attempt_of(made: KubeObject) -> int:
    """Which attempt of its operation made the object."""
    said = made.metadata.annotations.get(Annotation.OPERATION_ATTEMPT, "")
    return int(said) if said.isdecimal() and len(said) < 10 else 0


def _require_same_request(found: Operation, asked: OperationSpec) -> Operation:
    if found.spec.request_hash != asked.request_hash:
        raise OperationReused(
            f"operationID {asked.operation_id} already stands for another request; choose a new one, or repeat the"
            " first request unchanged"
        )
    return found


def _with_nulls(status: OperationStatus) -> dict[str, Any]:
    """In a merge patch, what is left out stays: what is to go away must be said."""
    said = msgspec.to_builtins(status)
    return {name: said.get(name) for name in _STATUS_FIELDS}
