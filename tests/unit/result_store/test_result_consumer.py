"""Results are decoded, truncated to the body limit, and converted to rows and back without loss."""

from datetime import UTC, datetime

import msgspec
import pytest

from gpu_runtime.contract.errors import Rejected
from gpu_runtime.contract.messages.dead_letter import DeadLetter, DeadLetterBuilder
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation_messages import dead_letter_failure
from gpu_runtime.contract.messages.limits import MAX_PAYLOAD_BYTES
from gpu_runtime.contract.messages.message_codec import decode, encode
from gpu_runtime.contract.messages.result import Result, ResultState, Timings, with_body
from gpu_runtime.contract.messages.subjects import Stream, Subjects
from gpu_runtime.jetstream.delivery import DeadLetterDelivery, Delivery
from gpu_runtime.result_store.query_handler import result_from_row
from gpu_runtime.result_store.result_consumer import read_result, row_from_result, truncate_body
from tests.ticket_keys import TICKETS

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
RESULT = Result(
    invocation_id="inv-1",
    serverless_request_id="thumbs",
    function_id="thumbs",
    state=ResultState.SUCCEEDED,
    timings=Timings(finished_at=NOW),
    worker="thumbs-x7",
)


def delivery(data: bytes, subject: str = "runtime.serverless.result.thumbs") -> Delivery:
    return Delivery(subject, data, {}, "RESULT", sequence=7, delivery_count=1, published_at=NOW)


def test_result_row_round_trip() -> None:
    result = with_body(RESULT, "image/png", b"\x00\xff" * 100)
    assert (
        result_from_row(row_from_result(read_result(delivery(encode(result)), Subjects(), MAX_PAYLOAD_BYTES), NOW))
        == result
    )


def test_result_body_above_the_limit_is_truncated_and_flagged() -> None:
    truncated = read_result(delivery(encode(with_body(RESULT, "text/plain", b"x" * 3000))), Subjects(), 1024)
    assert (truncated.body, truncated.body_truncated, truncated.body_bytes) == (b"x" * 1024, True, 3000)


@pytest.mark.parametrize("limit", [1000, 600])
def test_truncated_result_preserves_its_original_size(limit: int) -> None:
    truncated_by_sender = with_body(RESULT, "text/plain", b"x" * 5000, limit=800)
    truncated = truncate_body(truncated_by_sender, limit)
    assert (len(truncated.body), truncated.body_truncated, truncated.body_bytes) == (min(limit, 800), True, 5000)


@pytest.mark.parametrize(
    ("data", "subject", "message"),
    [
        (b"{", "runtime.serverless.result.thumbs", "cannot read this Result"),
        (b'{"version":9}', "runtime.serverless.result.thumbs", "upgrade the process"),
        (encode(RESULT), "runtime.serverless.result.other", "the subject has 'other'"),
        (
            encode(msgspec.structs.replace(RESULT, invocation_id="a.>")),
            "runtime.serverless.result.thumbs",
            "not an invocationID",
        ),
    ],
)
def test_undecodable_result_is_rejected_with_a_reason(data: bytes, subject: str, message: str) -> None:
    with pytest.raises(Rejected, match=message):
        read_result(delivery(data, subject), Subjects(), MAX_PAYLOAD_BYTES)


@pytest.mark.parametrize("size", [10, 1024 * 1024])
def test_dead_letter_of_an_oversized_result_fits_into_a_message(size: int) -> None:
    outcome = DeadLetterDelivery("no result", FailureClass.BAD_MESSAGE)
    failure = dead_letter_failure(outcome)
    outgoing = DeadLetterBuilder(Subjects(), Stream.RESULT, TICKETS.message_id).message(
        delivery(b"\xff" * size), failure, NOW
    )
    letter = decode(outgoing.data, DeadLetter)
    assert len(outgoing.data) < 1024 * 1024 - 8192
    assert letter.failure_class is FailureClass.BAD_MESSAGE
    assert b"\xff" * size == letter.data or f"the message has {size} bytes" in letter.reason
