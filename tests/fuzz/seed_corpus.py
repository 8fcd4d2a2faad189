"""One valid JSON document of every message type. The fuzz tests mutate them."""

from typing import Any

import msgspec

from gpu_runtime.contract.messages.dead_letter import DeadLetter
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.drain_request import DrainRequest, DrainStatus
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_record import InvocationRecord
from gpu_runtime.contract.messages.invocation_ticket import TICKET_HEADER
from gpu_runtime.contract.messages.message_codec import Message
from gpu_runtime.contract.messages.result import Result
from gpu_runtime.contract.messages.result_query import (
    GetResultRequest,
    GetResultResponse,
    ListResultsRequest,
    ListResultsResponse,
)
from gpu_runtime.contract.messages.worker_event import WorkerEvent
from tests.ticket_keys import TICKETS

FUNCTION, FUNCTION_ID = "fuzzed", "fuzzed-id"
POD_UID = "pod-fuzzed"
TIMESTAMP, FUTURE_TIMESTAMP = "2026-01-01T00:00:00Z", "2999-01-01T00:00:00Z"

Document = dict[str, Any]

INVOCATION: Document = {
    "version": 1,
    "invocationID": "inv-1",
    "serverlessRequestID": FUNCTION,
    "functionID": FUNCTION_ID,
    "contentType": "application/json",
    "headers": {"Do": "echo"},
    "attributes": {"who": "me"},
    "body": "eyJuIjoxfQ==",
    "enqueuedAt": TIMESTAMP,
    "timeoutSeconds": 30.0,
    "mode": "sync",
    "replyTo": "replies",
}
DISPATCH: Document = {
    "version": 1,
    "invocation": INVOCATION,
    "attempt": 1,
    "deadline": FUTURE_TIMESTAMP,
    "dispatchedAt": TIMESTAMP,
}
RESULT: Document = {
    "version": 1,
    "invocationID": "inv-1",
    "serverlessRequestID": FUNCTION,
    "functionID": FUNCTION_ID,
    "state": "failed",
    "failure": {"class": "function_error", "message": "the function failed"},
    "statusCode": 500,
    "contentType": "text/plain",
    "body": "bm8=",
    "bodyBytes": 2,
    "timings": {"enqueuedAt": TIMESTAMP, "dispatchedAt": TIMESTAMP, "startedAt": TIMESTAMP, "finishedAt": TIMESTAMP},
    "worker": f"{FUNCTION}-w0",
    "attempts": 1,
}
RECORD: Document = {
    "version": 1,
    "requestHash": "0" * 64,
    "serverlessRequestID": FUNCTION,
    "functionID": FUNCTION_ID,
    "state": "running",
    "enqueuedAt": TIMESTAMP,
    "deadline": FUTURE_TIMESTAMP,
    "updatedAt": TIMESTAMP,
    "termination": "cancelled",
    "worker": f"{FUNCTION}-w0",
    "attempts": 1,
    "replyTo": "_INBOX.caller.1",
}
TICKET = TICKETS.sign_record("inv-1", msgspec.convert(RECORD, InvocationRecord))
"""A valid ticket. An attacker has it if an invocation was dispatched to its worker."""
DEAD_LETTER: Document = {
    "version": 1,
    "serverlessRequestID": FUNCTION,
    "invocationID": "inv-1",
    "subject": f"runtime.serverless.invoke.{FUNCTION_ID}",
    "headers": {"Gpu-Runtime-Revision": "7", TICKET_HEADER: TICKET},
    "data": "e30=",
    "class": "bad_message",
    "reason": "undecodable",
    "deliveryCount": 5,
    "publishedAt": TIMESTAMP,
    "deadLetteredAt": TIMESTAMP,
}
EVENT: Document = {
    "version": 1,
    "kind": "heartbeat",
    "functionID": FUNCTION_ID,
    "unit": f"{FUNCTION}-w0",
    "namespace": "runtime-instance",
    "podUID": "unknown-pod",
    "sequence": 3,
    "inFlight": 1,
    "concurrency": 2,
    "invocationID": "inv-1",
}
GET_RESULT: Document = {"version": 1, "invocationID": "inv-1"}
LIST_RESULTS: Document = {
    "version": 1,
    "serverlessRequestID": FUNCTION,
    "state": "failed",
    "limit": 5,
    "continueToken": "",
}

SAMPLES: dict[type[Message], Document] = {
    Invocation: INVOCATION,
    Dispatch: DISPATCH,
    Result: RESULT,
    InvocationRecord: RECORD,
    DeadLetter: DEAD_LETTER,
    WorkerEvent: EVENT,
    GetResultRequest: GET_RESULT,
    GetResultResponse: {"version": 1, "result": RESULT},
    ListResultsRequest: LIST_RESULTS,
    ListResultsResponse: {"version": 1, "results": [RESULT, RESULT], "continueToken": "7"},
    DrainRequest: {"version": 1},
    DrainStatus: {"version": 1, "accepted": True, "inFlight": 0},
}
