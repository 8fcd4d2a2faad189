"""A result that the server does not take at once."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_runtime.contract.messages.result import Result, ResultState, Timings
from gpu_runtime.contract.messages.subjects import Subjects
from gpu_runtime.jetstream.delivery import Outgoing
from gpu_runtime.jetstream.errors import ApiFault, Full, NoResponders, Refused, StreamError, Unreachable, refusal
from gpu_runtime.worker_sidecar.dispatch_consumer import Work
from tests.unit.kube.fake_time import on_fake_time

RESULT = Result(
    invocation_id="i",
    serverless_request_id="f",
    state=ResultState.SUCCEEDED,
    timings=Timings(finished_at=datetime(2026, 1, 1, tzinfo=UTC)),
)
TERMS: Any = SimpleNamespace(subjects=Subjects())


class Server:
    """Refuses the first so many."""

    def __init__(self, error: StreamError, times: int) -> None:
        self.error, self.left, self.stored = error, times, 0

    async def publish(self, _message: Outgoing) -> None:
        if self.left:
            self.left -= 1
            raise self.error
        self.stored += 1


async def store(server: Any) -> None:
    anything: Any = None
    work = Work(server, anything, anything, anything, anything, anything, anything, TERMS)
    await work._store(work._outgoing(RESULT, None), RESULT, None)


@pytest.mark.parametrize(
    "error",
    [
        Unreachable("away", sent=True),
        NoResponders("nobody"),
        Full("maximum bytes exceeded"),
        refusal(ApiFault(503, 10008, "JetStream system temporarily unavailable")),
        refusal(ApiFault(500, 10047, "insufficient storage resources available")),
    ],
    ids=str,
)
@on_fake_time
async def test_the_function_is_not_run_again_because_the_server_cannot_store_now(error: StreamError) -> None:
    server = Server(error, times=20)
    await store(server)
    assert server.stored == 1


async def test_what_the_server_will_never_take_is_not_tried_for_ever() -> None:
    with pytest.raises(Refused):
        await store(Server(refusal(ApiFault(400, 10054, "message size exceeds maximum allowed")), times=20))
