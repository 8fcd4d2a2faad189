"""docs/reference/errors.md: error codes of the HTTP API, and failure classes of invocations."""

from collections.abc import Iterator
from types import MappingProxyType

from docgen.class_constants import documented_constants
from docgen.markdown import code, page, table
from gpu_runtime.contract.errors import RuntimeFault
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.runtime_api.http.envelope import http_status

ADVICE = MappingProxyType(
    {
        "admission_denied": ("An admission policy or webhook of the cluster rejected the object.", "Yes, with a new operationID, after you have changed the policy or the request."),
        "already_exists": ("An object with the requested name exists, and another request created this object.", "Yes, with another name. If the request has an operationID, use a new operationID, too."),
        "already_finished": ("The invocation has finished, so it cannot be cancelled.", "No. Get the result of the invocation."),
        "being_deleted": ("The object of the request, or a storage that the request mounts, is being deleted.", "If the request creates a storage: yes, send the same request after the old storage is deleted. In all other cases: no. Use another object."),
        "conflict": ("The operation failed with a code that only a newer version of the platform knows.", "`error.message` says what to do."),
        "duplicate_request_id": ("Another function has the requestID of the function in the request.", "No. Choose another requestID, or delete the other function first. Then use a new operationID."),
        "forbidden": ("The token does not have the scope that the route needs.", "No. Use a token with this scope."),
        "gone": ("The operation with this operationID created an object, and the object was deleted afterwards.", "Yes, with a new operationID."),
        "internal": ("An unexpected error occurred in the platform. The log lines whose field `http_request_id` is equal to `error.requestID` contain the details.", "Yes, send the same request."),
        "stock_claimed": ("A create request has claimed the stock unit.", "No. Withdraw another stock unit."),
        "lifetime_ended": ("The platform has begun to stop the unit, because the lifetime of the unit is over.", "Yes, send the same request after you have started the unit again."),
        "invalid": ("The request has errors. `error.details` has one entry for each wrong field.", "No. Correct the fields first."),
        "invocation_reused": ("Another request with different content has already used the invocationID.", "Yes, with a new invocationID."),
        "method_not_allowed": ("The path does not support the method. The header `Allow` lists the supported methods.", "No. Use a supported method."),
        "no_stock": ("No Ready stock unit of the requested flavor is available.", "Yes, send the same request after stock is available."),
        "no_stock_to_return": ("No committed operation created this worker from a stock unit, so the worker has no stock to return.", "No. Delete the worker."),
        "not_found": ("The object, the function or the path does not exist.", "No. Correct the name or the path first."),
        "not_redrivable": ("The dead letter cannot be redriven, for example because it cannot be decoded. `error.message` contains the reason.", "No. Delete the dead letter."),
        "operation_reused": ("Another request with different content has already used the operationID.", "Yes, with a new operationID."),
        "overloaded": ("A limit was exceeded. The message names the limit: the rate limit of the caller or of the peer; the create requests of the caller that wait; `limits.maxBytesInFlight`; the waiting invocations of the function, or their bytes; the size of the streams or of the bucket of invocation records.", "Yes, send the same request again. First wait for the number of seconds in the header `Retry-After`."),
        "quota_exceeded": ("A ResourceQuota of the namespace rejected the object.", "Yes, with a new operationID, after the quota allows the object."),
        "slow_request": ("The client sent the body of the request too slowly.", "Yes, send the same request again."),
        "storage_in_use": ("The storage is attached to a unit.", "Yes, send the same request after the storage is detached."),
        "sync_timeout": ("The result of a synchronous invocation did not arrive within the maximum wait time. The invocation continues.", "No. Get the result with the invocationID."),
        "too_large": ("The request body or the payload of the invocation is too large.", "No. Send a smaller body or payload."),
        "too_many_waiting": ("No Ready stock unit of the requested flavor is available, and too many operations of the caller already wait for stock (`operations.maxWaitingPerCaller`).", "Yes, send the same request again. First wait for the number of seconds in the header `Retry-After`."),
        "unauthenticated": ("The request has no token, or the token is not valid.", "No. Use a valid token."),
        "unavailable": ("Kubernetes, NATS or the result store did not respond, or the API could not process the request within `limits.requestTimeoutSeconds`.", "Yes, send the same request again. First wait for the number of seconds in the header `Retry-After`."),
        "write_conflict": ("Another request changed the object at the same time.", "Yes, send the same request."),
    }
)  # fmt: skip
"""For every error code of the HTTP API: its cause, and whether the caller can send the request again."""

NOT_IN_RESPONSES = frozenset({"fault", "rejected"})
"""Codes of base classes. No response has one of these codes."""


def errors_page() -> str:
    introduction = (
        "An error response of the HTTP API contains `error.code` for programs and `error.message` for people. The meaning of a"
        " code never changes. If you get status 503, or if you get no response, the API may have executed the request. Repeat"
        " the request with the same operationID or invocationID. The API recognizes the repeated request by this ID."
    )
    classes = table(("class", "meaning"), _failure_classes())
    return page(
        "Error codes",
        introduction,
        f"## HTTP API\n\n{table(('status', 'code', 'cause', 'send the request again?'), _codes())}",
        "## Failure classes of invocations\n\nThe result of an invocation that did not succeed has a failure class in the field"
        " `failure.class`. A dead letter has the failure class in the field `class`. The table below says for each"
        " failure class whether the platform retries the invocation. The platform stops the retries when the maximum number of attempts"
        " (setting `serverless.sidecar.maxAttempts`) is reached. The result then has the failure class of the last attempt."
        f"\n\n{classes}",
    )


def _codes() -> Iterator[tuple[str, ...]]:
    faults = {fault.code: fault for fault in _subclasses(RuntimeFault) if fault.__module__.startswith(HTTP_MODULES)}
    raised = {code_: fault for code_, fault in faults.items() if code_ not in NOT_IN_RESPONSES}
    if missing := raised.keys() ^ ADVICE.keys():
        raise LookupError(f"error codes without advice, or advice without a code: {sorted(missing)}")
    for name, fault in sorted(raised.items(), key=lambda each: (http_status(each[1]), each[0])):
        yield str(http_status(fault)), code(name), *ADVICE[name]


HTTP_MODULES = ("gpu_runtime.contract.errors", "gpu_runtime.runtime_api.http")


def _subclasses(fault: type[RuntimeFault]) -> Iterator[type[RuntimeFault]]:
    for child in fault.__subclasses__():
        yield child
        yield from _subclasses(child)


def _failure_classes() -> Iterator[tuple[str, ...]]:
    for value, meaning in documented_constants(FailureClass).values():
        yield code(value), meaning
