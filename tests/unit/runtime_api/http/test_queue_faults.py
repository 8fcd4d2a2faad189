"""What goes wrong at the queue is answered as the document says, also while Kubernetes is away."""

import msgspec
import pytest

from gpu_runtime.contract.errors import SyncTimeout
from gpu_runtime.jetstream.errors import Full, NoResponders, StreamError, TooLarge, Unreachable
from gpu_runtime.runtime_api.http.decoding import read_body
from gpu_runtime.runtime_api.http.envelope import failure
from gpu_runtime.runtime_api.http.route import Answer, Body, Call, NoQuery
from tests.unit.runtime_api.http.serving import Settings, a_route, served


class Kept(Body, frozen=True, kw_only=True):
    value: msgspec.Raw = msgspec.Raw()


@pytest.mark.parametrize(
    ("error", "status", "waits"),
    [
        (Full("maximum messages per subject exceeded"), 429, True),
        (TooLarge("the message has 2 bytes"), 413, False),
        (Unreachable("not connected", sent=False), 503, True),
        (NoResponders("no stream"), 503, True),
    ],
)
async def test_a_fault_of_the_queue_has_its_status(error: StreamError, status: int, waits: bool) -> None:
    async def fails(_call: Call[None, NoQuery]) -> Answer:
        raise error

    async with served([a_route(handler=fails)]) as edge:
        reply = await edge.ask("GET", "/things/x")
    assert (reply.status, "Retry-After" in reply.headers) == (status, waits)
    assert str(error) in reply.error["message"]


async def test_who_does_not_need_the_cluster_works_without_it() -> None:
    away = Settings(unusable="Kubernetes cannot be reached")
    routes = [a_route(), a_route(path="/queue/{name}", name="getQueued", needs_cluster=False)]
    async with served(routes, away) as edge:
        assert (await edge.ask("GET", "/things/x")).status == 503
        assert (await edge.ask("GET", "/queue/x")).status == 200


def test_who_waited_in_vain_learns_the_id() -> None:
    reply = failure(SyncTimeout("no answer within 5 s", "inv-1"), "request-1")
    (detail,) = msgspec.json.decode(reply.body)["error"]["details"]
    assert (reply.status, detail["field"], detail["value"]) == (504, "invocationID", "inv-1")


@pytest.mark.parametrize("written", [b"1.00", b'{"a" :  [1e2]}', b"null", b'"\\u00e9"', b"1" * 30])
def test_what_is_to_be_kept_is_kept_as_it_was_written(written: bytes) -> None:
    assert bytes(read_body(b'{"value": ' + written + b"}", "application/json", Kept).value) == written
