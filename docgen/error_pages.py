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
        "admission_denied": ("An admission policy or webhook of the cluster denied the object.", "After the policy or the request has changed, with a new operationID."),
        "already_exists": ("An object with this name exists and was not created by this request.", "With another name and a new operationID."),
        "already_finished": ("The invocation has finished, so it cannot be cancelled.", "No. Get its result."),
        "being_deleted": ("The object is being deleted.", "When it has been deleted."),
        "conflict": ("A conflict without a more specific code.", "Read the message."),
        "duplicate_request_id": ("Two functions have the same serverlessRequestID.", "When one of them has been deleted."),
        "forbidden": ("The token does not have the scope that the route needs.", "No."),
        "gone": ("The object that this operationID created has been deleted.", "With a new operationID."),
        "internal": ("A defect of the platform. The log has the details under the requestID.", "Yes, the same request."),
        "invalid": ("The request has errors. `details` has one entry per field.", "No. Correct the fields."),
        "invocation_reused": ("The invocationID belongs to another request.", "With a new invocationID."),
        "method_not_allowed": ("The path exists, the method does not. The header `Allow` lists the methods.", "No."),
        "no_stock": ("No Ready stock unit of this flavor is free.", "Yes, the same request, later."),
        "not_found": ("The object, the path or the function does not exist.", "No."),
        "not_redrivable": ("The dead letter cannot be decoded, so it cannot be sent again.", "No. Delete the dead letter."),
        "operation_reused": ("The operationID belongs to another request.", "With a new operationID."),
        "overloaded": ("The caller exceeded its rate limit, or the function has too many waiting invocations.", "Yes, after `Retry-After`."),
        "quota_exceeded": ("A ResourceQuota of the namespace denied the object.", "When the quota allows it, with a new operationID."),
        "storage_in_use": ("Another unit has the storage attached.", "Yes, the same request, later."),
        "sync_timeout": ("The result did not arrive while the caller could wait. The invocation continues.", "No. Get the result by its invocationID."),
        "too_large": ("The body or the payload is larger than its limit.", "No."),
        "unauthenticated": ("The request has no token, or the token is not valid.", "No."),
        "unavailable": ("Kubernetes, NATS or the result store did not answer, or the request took too long.", "Yes, the same request, after `Retry-After`."),
        "write_conflict": ("Other writers changed the object at the same time.", "Yes, the same request."),
    }
)  # fmt: skip
"""Cause, and whether to send the request again, of every code that the HTTP API returns."""

NOT_IN_RESPONSES = frozenset({"fault", "rejected"})
"""Codes of base classes that are never raised themselves."""


def errors_page() -> str:
    introduction = (
        "An error response of the HTTP API has `error.code` for programs and `error.message` for people. A code never changes"
        " its meaning. After 503, a timeout or a broken connection the request may have been carried out: send the same"
        " request with the same ID again."
    )
    classes = table(("class", "meaning"), _failure_classes())
    return page(
        "Error codes",
        introduction,
        f"## HTTP API\n\n{table(('status', 'code', 'cause', 'send again?'), _codes())}",
        "## Failure classes of invocations\n\nA result that did not succeed, and a dead letter, have a failure class in the"
        f" field `class`.\n\n{classes}",
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
