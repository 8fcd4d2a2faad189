"""A redrive of a dead letter enqueues a new invocation, always the same one for the same dead letter."""

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import structs

from gpu_runtime.contract.errors import NotRedrivable
from gpu_runtime.contract.messages.dead_letter import DeadLetter
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import Invocation, invocation_id_errors
from gpu_runtime.contract.messages.invocation_messages import invocation_hash, new_record
from gpu_runtime.contract.messages.invocation_ticket import TICKET_HEADER, InvocationTicket, ticket_of
from gpu_runtime.contract.messages.message_codec import Message, encode
from gpu_runtime.contract.messages.subjects import Stream, Subjects
from gpu_runtime.jetstream.stream_messages import StoredMessage
from gpu_runtime.runtime_api.dead_letters.redrive import redrive_invocation_id, redriven_invocation, redriven_result
from gpu_runtime.runtime_api.dead_letters.stored_letter import StoredDeadLetter, read_dead_letter
from tests.ticket_keys import TICKETS

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
INVOCATION = Invocation(
    invocation_id="i",
    serverless_request_id="f",
    function_id="f",
    mode="sync",
    body=b"1",
    reply_to="_INBOX.x",
    enqueued_at=NOW,
    timeout_seconds=5.0,
)


TICKET = ticket_of("i", new_record(INVOCATION, NOW, NOW))
TICKET_TEXT = TICKETS.sign(TICKET)


def stored_letter(source: Stream, data: bytes, ticket: InvocationTicket | None = TICKET) -> StoredDeadLetter:
    letter = DeadLetter(
        subject="$JS.API.STREAM.PURGE.X",
        headers={"Nats-Msg-Id": "i", "Gpu-Runtime-Revision": "3", TICKET_HEADER: TICKET_TEXT},
        data=data,
        failure_class=FailureClass.INTERNAL,
        reason="",
        delivery_count=5,
        published_at=NOW,
        dead_lettered_at=NOW,
    )
    return StoredDeadLetter(7, source, "f", letter, ticket)


@pytest.mark.parametrize(
    ("source", "message"),
    [(Stream.INVOKE, INVOCATION), (Stream.DISPATCH, Dispatch(invocation=INVOCATION, deadline=NOW, dispatched_at=NOW))],
)
def test_redriven_invocation_is_async_with_a_derived_id(source: Stream, message: Message) -> None:
    redriven = redriven_invocation(stored_letter(source, encode(message)))
    assert (redriven.invocation_id, redriven.mode, redriven.reply_to, redriven.enqueued_at) == (
        *("i-redrive-7", "async", ""),
        None,
    )
    assert invocation_hash(redriven) == invocation_hash(INVOCATION)


def test_long_invocation_id_is_truncated_to_a_valid_id() -> None:
    invocation_id = redrive_invocation_id("x" * 128, "123456")
    assert len(invocation_id) == 128
    assert not list(invocation_id_errors(invocation_id))
    assert invocation_id.endswith("-redrive-123456")


def test_undecodable_dead_letter_is_not_redriven() -> None:
    with pytest.raises(NotRedrivable, match="dead letter 7 cannot be redriven"):
        redriven_invocation(stored_letter(Stream.INVOKE, b"{"))


def test_redriven_result_has_the_subject_of_its_function_and_only_the_ticket() -> None:
    redriven = redriven_result(stored_letter(Stream.RESULT, b"anything"), Subjects(), TICKETS.message_id)
    assert (redriven.subject, redriven.data) == ("runtime.serverless.result.f", b"anything")
    assert redriven.headers == {TICKET_HEADER: TICKET_TEXT}
    assert redriven.message_id == TICKETS.message_id("redrive", "7", NOW.isoformat())


def test_dead_letter_without_a_valid_ticket_is_not_redriven() -> None:
    with pytest.raises(NotRedrivable, match="dead letter 7 cannot be redriven: it has no valid ticket"):
        redriven_invocation(stored_letter(Stream.INVOKE, encode(INVOCATION), ticket=None))
    with pytest.raises(NotRedrivable, match="dead letter 7 cannot be redriven: it has no valid ticket"):
        redriven_result(stored_letter(Stream.RESULT, b"anything", ticket=None), Subjects(), TICKETS.message_id)


CHANGED: tuple[dict[str, Any], ...] = (
    {"invocation_id": "two words"},
    {"invocation_id": "another"},
    {"serverless_request_id": "Not.A.Token"},
    {"function_id": "g"},
    {"body": b"2"},
    {"headers": {"a": "b"}},
    {"timeout_seconds": 6.0},
)


@pytest.mark.parametrize("changed", CHANGED, ids=str)
def test_dead_letter_with_another_request_than_the_accepted_one_is_not_redriven(changed: dict[str, Any]) -> None:
    invalid = structs.replace(INVOCATION, **changed)
    with pytest.raises(NotRedrivable, match="dead letter 7 cannot be redriven"):
        redriven_invocation(stored_letter(Stream.INVOKE, encode(invalid)))


def test_ticket_of_another_function_does_not_count() -> None:
    letter = stored_letter(Stream.DISPATCH, encode(INVOCATION)).letter
    for function_id, ticket in (("f", TICKET), ("g", None)):
        message = StoredMessage(Subjects().dead_letter(Stream.DISPATCH, function_id), 7, encode(letter), {}, NOW)
        stored = read_dead_letter(message, Subjects(), TICKETS)
        assert (stored.id, stored.source, stored.function_id) == ("7", Stream.DISPATCH, function_id)
        assert stored.ticket == ticket
