"""Whatever bytes come, they are a message or Unreadable; and what can be read can be worked with."""

from contextlib import suppress
from datetime import UTC, datetime

from hypothesis import example, given
from hypothesis import strategies as st

from gpu_runtime.activator.dispatcher import read
from gpu_runtime.contract.messages.dead_letter import DeadLetters
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_id import invocation_hash
from gpu_runtime.contract.messages.invocation_record import RECORD, REVISION, known_from
from gpu_runtime.contract.messages.message_codec import Message, Unreadable, decode, encode
from gpu_runtime.contract.messages.result import Failure, Result, ResultState, unsuccessful
from gpu_runtime.contract.messages.subjects import Queue, Subjects
from gpu_runtime.jetstream.delivery import NO_HEADERS, Delivery
from gpu_runtime.worker_sidecar.retry_decision import Run, buried
from tests.fuzz.cases import fuzzed, tried
from tests.fuzz.nasty import encoded, messages, texts
from tests.fuzz.samples import FUNCTION, INVOCATION, SAMPLES
from tests.fuzz.samples import RECORD as KEPT

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MESSAGE_LIMIT = 1024 * 1024 - 8192
"""What NATS takes, with room for headers."""
NESTED = b'{"version":1,"x":' + b"[" * 5000 + b"]" * 5000 + b"}"


SENT = st.one_of([st.tuples(st.just(model), messages([sample])) for model, sample in SAMPLES.items()])


@fuzzed(100)
@given(SENT)
@example((Invocation, NESTED))
@example((Result, b'{"version":1,"invocationID":"\xff"}'))
def test_bytes_are_a_message_or_unreadable(said: tuple[type[Message], bytes]) -> None:
    model, data = said
    message, refusal = tried(Unreadable, lambda: decode(data, model))
    assert decode(encode(message), model) == message if message else refusal and refusal.message


@fuzzed(100)
@given(messages([INVOCATION]), st.sampled_from([FUNCTION, "other", "Not.One"]))
@example(encoded(INVOCATION | {"timeoutSeconds": 1e300}), FUNCTION)
@example(encoded({**INVOCATION, "timeoutSeconds": 1e300, "enqueuedAt": None}), FUNCTION)
@example(encoded(INVOCATION | {"enqueuedAt": "9999-12-31T23:59:59Z"}), FUNCTION)
@example(encoded(INVOCATION | {"enqueuedAt": "0001-01-01T00:00:00+23:59", "timeoutSeconds": 1}), FUNCTION)
@example(encoded(INVOCATION | {"timeoutSeconds": 5e-324}), FUNCTION)
@example(NESTED, FUNCTION)
@example(b"\xff" * 1024 * 1024, FUNCTION)
@example(b'{"version":1,"invocationID":"\xff"}', FUNCTION)
def test_what_is_delivered_as_an_invocation_is_one_or_becomes_a_dead_letter(data: bytes, queue: str) -> None:
    """Neither may raise: what raises while it is given up would be delivered for ever."""
    subjects = Subjects()
    delivery = Delivery(f"{subjects.prefix}.invoke.{queue}", data, NO_HEADERS, "INVOKE", 1, 1, NOW)
    failure = Failure(failure_class=FailureClass.BAD_MESSAGE, message="why")
    letters = DeadLetters(subjects, Queue.INVOKE)
    letter = letters.letter(delivery, failure, NOW)
    outgoing = letters.outgoing(letter)
    assert outgoing.subject.startswith(f"{subjects.prefix}.dlq.invoke.")
    assert len(outgoing.data) < MESSAGE_LIMIT
    buried(data, FUNCTION, failure, Run("worker", 1), NOW)
    with suppress(Unreadable):
        accepted = read(delivery, subjects)
        dispatch = Dispatch(invocation=accepted.invocation, deadline=accepted.deadline, dispatched_at=NOW)
        assert decode(encode(dispatch), Dispatch) == dispatch
        assert len(invocation_hash(accepted.invocation)) == 64
        result = unsuccessful(accepted.invocation, ResultState.EXPIRED, failure, NOW)
        assert decode(encode(result), Result) == result


@fuzzed(100)
@given(texts(), messages([KEPT]))
@example("9" * 5000, encoded(KEPT))
@example(str(2**64), encoded(KEPT))
@example("7", NESTED)
def test_headers_tell_of_a_record_or_of_nothing(revision: str, record: bytes) -> None:
    known = known_from({REVISION: revision, RECORD: record.decode(errors="surrogateescape")})
    assert known is None or 0 <= known.revision < 2**64
