"""Publishing a result is retried after a transient failure, but not after a permanent one."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_runtime.contract.messages.invocation_ticket import worker_message_id
from gpu_runtime.contract.messages.result import Result, ResultState, Timings
from gpu_runtime.contract.messages.subjects import Subjects
from gpu_runtime.invocation_records.result_publisher import ResultPublisher
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.jetstream.errors import (
    ApiErrorBody,
    JetStreamApiError,
    JetStreamError,
    NatsUnreachable,
    NoResponders,
    StreamFull,
    api_error_from,
)
from gpu_runtime.worker_sidecar.dispatch_handler import DispatchHandler
from tests.unit.kube.fake_time import on_fake_time

RESULT = Result(
    invocation_id="i",
    serverless_request_id="f",
    function_id="f",
    state=ResultState.SUCCEEDED,
    timings=Timings(finished_at=datetime(2026, 1, 1, tzinfo=UTC)),
)
OPTIONS: Any = SimpleNamespace(subjects=Subjects())


class RejectingPublisher:
    """Rejects the first `times` messages with an error."""

    def __init__(self, error: JetStreamError, times: int) -> None:
        self.error, self.rejections_remaining, self.stored = error, times, 0

    async def publish(self, _message: OutgoingMessage) -> None:
        if self.rejections_remaining:
            self.rejections_remaining -= 1
            raise self.error
        self.stored += 1


async def publish_result(server: Any) -> None:
    unused: Any = None
    results = ResultPublisher(Subjects(), server, worker_message_id)
    consumer = DispatchHandler(results, unused, unused, unused, unused, unused, unused, OPTIONS)
    await consumer._publish_result(RESULT, None, "ticket")


@pytest.mark.parametrize(
    "error",
    [
        NatsUnreachable("connection lost", sent=True),
        NoResponders("no responders"),
        StreamFull("maximum bytes exceeded"),
        api_error_from(ApiErrorBody(503, 10008, "JetStream system temporarily unavailable")),
        api_error_from(ApiErrorBody(500, 10047, "insufficient storage resources available")),
    ],
    ids=str,
)
@on_fake_time
async def test_temporary_publish_failure_does_not_rerun_the_function(error: JetStreamError) -> None:
    server = RejectingPublisher(error, times=20)
    await publish_result(server)
    assert server.stored == 1


async def test_permanent_publish_failure_is_raised() -> None:
    with pytest.raises(JetStreamApiError):
        await publish_result(
            RejectingPublisher(
                api_error_from(ApiErrorBody(400, 10054, "message size exceeds maximum allowed")), times=20
            )
        )
