"""A replay of a failed create operation returns the error that the Operation stores."""

from typing import Any

import pytest

from gpu_runtime.contract.crd.operation import OperationError, OperationState, OperationType
from gpu_runtime.contract.errors import (
    AdmissionDenied,
    AlreadyExists,
    BeingDeleted,
    Conflict,
    Invalid,
    QuotaExceeded,
    RuntimeFault,
    TooLarge,
)
from gpu_runtime.contract.recorded_requests import RecordedUnitRequest
from gpu_runtime.process.clock import SystemClock
from gpu_runtime.runtime_api.operations.drive import OperationDriver
from gpu_runtime.runtime_api.operations.operation_store import RecordedOperation
from gpu_runtime.runtime_api.units.handoff import Handoff
from gpu_runtime.runtime_api.units.stock_selector import StockOffer
from tests.unit.runtime_api.runtime_api_objects import operation

REQUEST = RecordedUnitRequest(operation_id="one", name="web", namespace="batch", spec_name="g1.1", image="python")


class FailedOperation:
    """The dependencies of a handoff whose operation failed with this error, without stock and without storages."""

    def __init__(self, error: OperationError) -> None:
        self.operation = operation(OperationType.CREATE_UNIT, OperationState.FAILED, error=error)
        self.units = self.store = self.unfinished_operations = self

    def get(self, *_: Any) -> None:
        """The cache has no unit with the name."""

    def by_index(self, *_: Any) -> list[Any]:
        """The cache has no other operation of the caller."""
        return []

    async def find_missing(self, *_: Any) -> tuple[()]:
        return ()

    async def hold(self, *_: Any) -> StockOffer:
        return StockOffer(None, {})

    def release_hold(self, uid: str) -> None:
        assert not uid

    async def record(self, *_: Any, **__: Any) -> RecordedOperation:
        return RecordedOperation(self.operation, new=False)


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("quota_exceeded", QuotaExceeded),
        ("admission_denied", AdmissionDenied),
        ("already_exists", AlreadyExists),
        ("being_deleted", BeingDeleted),
        ("invalid", Invalid),
        ("too_large", TooLarge),
        ("conflict", Conflict),
        ("a_code_of_a_newer_version", Conflict),
    ],
)
async def test_replay_of_a_failed_create_keeps_the_stored_code(code: str, fault: type[RuntimeFault]) -> None:
    fakes: Any = FailedOperation(OperationError(code=code, message="the stored message"))
    driver = OperationDriver(fakes, SystemClock())
    handoff = Handoff(fakes, fakes, driver, fakes, fakes, deletions=fakes)
    with pytest.raises(RuntimeFault, match="the stored message") as raised:
        await handoff.create(REQUEST)
    assert raised.type is fault
