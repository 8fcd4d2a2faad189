"""The runtime API client maps error responses to faults."""

from gpu_runtime.activator.runtime_api_client import fault_from_response
from gpu_runtime.contract.errors import AlreadyExists, Conflict, NoStock, QuotaExceeded, Rejected, Unavailable


def test_runtime_api_error_responses_map_to_faults() -> None:
    assert isinstance(fault_from_response(409, b'{"error": {"code": "no_stock", "message": "none"}}'), NoStock)
    assert type(fault_from_response(409, b'{"error": {"code": "conflict", "message": "taken"}}')) is Conflict
    assert type(fault_from_response(409, b'{"error": {"code": "already_exists"}}')) is AlreadyExists
    assert type(fault_from_response(409, b'{"error": {"code": "quota_exceeded"}}')) is QuotaExceeded
    assert type(fault_from_response(409, b'{"error": {"code": "a_code_of_a_newer_version"}}')) is Conflict
    assert type(fault_from_response(409, b"<html>")) is Conflict
    assert isinstance(fault_from_response(400, b'{"error": {"code": "invalid"}}'), Rejected)
    assert isinstance(fault_from_response(503, b""), Unavailable)
    assert isinstance(fault_from_response(429, b"{}"), Unavailable)
    assert isinstance(fault_from_response(429, b'{"error": {"code": "overloaded"}}'), Unavailable)


def test_worker_is_created_without_stock_if_too_many_operations_wait_for_stock() -> None:
    assert isinstance(fault_from_response(429, b'{"error": {"code": "too_many_waiting"}}'), NoStock)
