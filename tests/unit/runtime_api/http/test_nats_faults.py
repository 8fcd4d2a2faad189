"""The responses to NATS errors, and to requests that need no cluster while Kubernetes is unreachable."""

import msgspec
import pytest

from gpu_runtime.contract.errors import SyncTimeout
from gpu_runtime.jetstream.errors import JetStreamError, NatsMessageTooLarge, NatsUnreachable, NoResponders, StreamFull
from gpu_runtime.runtime_api.http.decoding import decode_body
from gpu_runtime.runtime_api.http.envelope import error_response
from gpu_runtime.runtime_api.http.route import APIRequest, APIResponse, Body, NoQuery
from tests.unit.runtime_api.http.http_harness import AppOptions, make_route, running_app


class RawValueBody(Body, frozen=True, kw_only=True):
    value: msgspec.Raw = msgspec.Raw()


@pytest.mark.parametrize(
    ("error", "status", "has_retry_after"),
    [
        (StreamFull("maximum messages per subject exceeded"), 429, True),
        (NatsMessageTooLarge("the message has 2 bytes"), 413, False),
        (NatsUnreachable("not connected", sent=False), 503, True),
        (NoResponders("no stream"), 503, True),
    ],
)
async def test_nats_fault_has_its_status(error: JetStreamError, status: int, has_retry_after: bool) -> None:
    async def fail(_request: APIRequest[None, NoQuery]) -> APIResponse:
        raise error

    async with running_app([make_route(handler=fail)]) as edge:
        reply = await edge.request("GET", "/items/x")
    assert (reply.status, "Retry-After" in reply.headers) == (status, has_retry_after)
    assert str(error) in reply.error["message"]


async def test_route_without_cluster_works_while_kubernetes_is_unreachable() -> None:
    unreachable = AppOptions(stale_reason="Kubernetes cannot be reached")
    routes = [make_route(), make_route(path="/queue/{name}", name="getQueued", needs_cluster=False)]
    async with running_app(routes, unreachable) as edge:
        assert (await edge.request("GET", "/items/x")).status == 503
        assert (await edge.request("GET", "/queue/x")).status == 200


def test_sync_timeout_response_has_the_invocation_id() -> None:
    reply = error_response(SyncTimeout("no answer within 5 s", "inv-1"), "request-1")
    (detail,) = msgspec.json.decode(reply.body)["error"]["details"]
    assert (reply.status, detail["field"], detail["value"]) == (504, "invocationID", "inv-1")


@pytest.mark.parametrize("value", [b"1.00", b'{"a" :  [1e2]}', b"null", b'"\\u00e9"', b"1" * 30])
def test_raw_json_field_preserves_its_bytes(value: bytes) -> None:
    assert bytes(decode_body(b'{"value": ' + value + b"}", "application/json", RawValueBody).value) == value
