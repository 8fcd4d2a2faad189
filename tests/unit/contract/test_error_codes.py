"""Every conflict has its own code, the HTTP status 409 and the base class Conflict."""

import pytest

from gpu_runtime.contract.errors import (
    AdmissionDenied,
    AlreadyExists,
    AlreadyFinished,
    BeingDeleted,
    Conflict,
    DuplicateRequestID,
    InvocationReused,
    LifetimeEnded,
    NoStock,
    NoStockToReturn,
    NotRedrivable,
    OperationReused,
    QuotaExceeded,
    StockClaimed,
    StorageInUse,
    WriteConflict,
    conflict_from,
)
from gpu_runtime.runtime_api.http.envelope import error_response, http_status
from gpu_runtime.runtime_api.openapi_routes import documented_routes

CONFLICTS: dict[str, type[Conflict]] = {
    "already_exists": AlreadyExists,
    "quota_exceeded": QuotaExceeded,
    "admission_denied": AdmissionDenied,
    "already_finished": AlreadyFinished,
    "being_deleted": BeingDeleted,
    "lifetime_ended": LifetimeEnded,
    "stock_claimed": StockClaimed,
    "write_conflict": WriteConflict,
    "duplicate_request_id": DuplicateRequestID,
    "not_redrivable": NotRedrivable,
    "operation_reused": OperationReused,
    "invocation_reused": InvocationReused,
    "no_stock": NoStock,
    "no_stock_to_return": NoStockToReturn,
    "storage_in_use": StorageInUse,
}


@pytest.mark.parametrize(("code", "conflict"), CONFLICTS.items(), ids=CONFLICTS)
def test_conflict_has_its_code_and_status_409(code: str, conflict: type[Conflict]) -> None:
    assert conflict.code == code
    assert http_status(conflict) == 409
    response = error_response(conflict("a message"), "request-1")
    assert response.status == 409
    assert f'"code":"{code}"'.encode() in response.body


@pytest.mark.parametrize(("code", "conflict"), CONFLICTS.items(), ids=CONFLICTS)
def test_conflict_is_rebuilt_from_its_code(code: str, conflict: type[Conflict]) -> None:
    rebuilt = conflict_from(code, "a message")
    assert type(rebuilt) is conflict
    assert rebuilt.message == "a message"


@pytest.mark.parametrize("code", ["conflict", "a_code_of_a_newer_version", "invalid", ""])
def test_unknown_code_becomes_a_plain_conflict(code: str) -> None:
    fault = conflict_from(code, "a message")
    assert (type(fault), fault.code, fault.message) == (Conflict, "conflict", "a message")
    assert http_status(type(fault)) == 409


def test_every_conflict_class_is_in_the_table() -> None:
    assert set(Conflict.__subclasses__()) == set(CONFLICTS.values())


def test_routes_document_specific_conflicts_only() -> None:
    documented = {fault for route in documented_routes() for fault in route.faults if issubclass(fault, Conflict)}
    assert documented == set(CONFLICTS.values())
