"""What the queue brings is read, cut to the limit with the truth about it, and kept so that it comes out the same."""

from datetime import UTC, datetime

import msgspec
import pytest

from gpu_runtime.contract.errors import Rejected
from gpu_runtime.contract.messages.dead_letter import DeadLetter, DeadLetters
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.limits import BODY_LIMIT
from gpu_runtime.contract.messages.message_codec import decode, encode
from gpu_runtime.contract.messages.result import Result, ResultState, Timings, with_body
from gpu_runtime.contract.messages.subjects import Queue, Subjects
from gpu_runtime.jetstream.delivery import Delivery, GiveUp
from gpu_runtime.result_store.result_codec import cut, letter_of, read, result_of, row_of

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
RESULT = Result(
    invocation_id="inv-1",
    serverless_request_id="thumbs",
    state=ResultState.SUCCEEDED,
    timings=Timings(finished_at=NOW),
    worker="thumbs-x7",
)


def delivery(data: bytes, subject: str = "runtime.serverless.result.thumbs") -> Delivery:
    return Delivery(subject, data, {}, "RESULT", sequence=7, attempt=1, stored_at=NOW)


def test_a_result_comes_out_as_it_came_in() -> None:
    result = with_body(RESULT, "image/png", b"\x00\xff" * 100)
    assert result_of(row_of(read(delivery(encode(result)), Subjects(), BODY_LIMIT))) == result


def test_a_body_above_the_limit_is_cut_and_says_so() -> None:
    shorter = read(delivery(encode(with_body(RESULT, "text/plain", b"x" * 3000))), Subjects(), 1024)
    assert (shorter.body, shorter.body_truncated, shorter.body_bytes) == (b"x" * 1024, True, 3000)


@pytest.mark.parametrize("kept", [1000, 600])
def test_what_was_cut_on_the_way_keeps_its_true_length(kept: int) -> None:
    on_the_way = with_body(RESULT, "text/plain", b"x" * 5000, limit=800)
    shorter = cut(on_the_way, kept)
    assert (len(shorter.body), shorter.body_truncated, shorter.body_bytes) == (min(kept, 800), True, 5000)


@pytest.mark.parametrize(
    ("data", "subject", "problem"),
    [
        (b"{", "runtime.serverless.result.thumbs", "cannot read this Result"),
        (b'{"version":9}', "runtime.serverless.result.thumbs", "upgrade it"),
        (encode(RESULT), "runtime.serverless.result.other", "the subject says 'other'"),
        (
            encode(msgspec.structs.replace(RESULT, invocation_id="a.>")),
            "runtime.serverless.result.thumbs",
            "not an invocationID",
        ),
    ],
)
def test_what_is_no_result_is_refused_with_the_reason(data: bytes, subject: str, problem: str) -> None:
    with pytest.raises(Rejected, match=problem):
        read(delivery(data, subject), Subjects(), BODY_LIMIT)


@pytest.mark.parametrize("size", [10, 1024 * 1024])
def test_a_dead_letter_fits_into_a_message_whatever_was_sent(size: int) -> None:
    gave_up = GiveUp("no result", FailureClass.BAD_MESSAGE)
    outgoing = letter_of(DeadLetters(Subjects(), Queue.RESULT), delivery(b"\xff" * size), gave_up, NOW)
    letter = decode(outgoing.data, DeadLetter)
    assert len(outgoing.data) < 1024 * 1024 - 8192
    assert letter.failure_class is FailureClass.BAD_MESSAGE
    assert b"\xff" * size == letter.data or f"it has {size} bytes" in letter.reason
