"""A ticket proves that a process with a key accepted the invocation. Nobody else can make or change a ticket."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from gpu_runtime.contract.messages.invocation_record import InvocationRecord, RecordAtRevision, record_headers
from gpu_runtime.contract.messages.invocation_ticket import (
    TICKET_HEADER,
    InvalidTicket,
    InvalidTicketKeys,
    TicketKeyring,
    header_record,
    parse_ticket_keys,
    ticket_headers,
    ticket_of,
    worker_message_id,
)

OLD, NEW = b"o" * 32, b"n" * 32
NOW = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
RECORD = InvocationRecord(
    request_hash="a" * 64,
    serverless_request_id="resize",
    function_id="f1",
    enqueued_at=NOW,
    deadline=NOW + timedelta(minutes=5),
    updated_at=NOW,
    reply_to="runtime.serverless.reply.f1.r.1",
)
TICKET = ticket_of("i", RECORD)


def test_signed_ticket_is_read_unchanged() -> None:
    keys = TicketKeyring([OLD])
    assert keys.verify(ticket_headers(keys.sign(TICKET))) == TICKET
    assert keys.sign_record("i", RECORD) == keys.sign(TICKET)


@pytest.mark.parametrize("field", TICKET.__struct_fields__)
def test_ticket_with_another_value_has_no_valid_signature(field: str) -> None:
    keys = TicketKeyring([OLD])
    other = NOW if field in ("enqueued_at", "deadline") else "other"
    changed = msgspec.structs.replace(TICKET, **{field: other + timedelta(1) if isinstance(other, datetime) else other})
    payload, mac = keys.sign(changed).split(".")[0], keys.sign(TICKET).split(".")[1]
    with pytest.raises(InvalidTicket, match="signature"):
        keys.verify({TICKET_HEADER: f"{payload}.{mac}"})


MALFORMED = {
    "an empty ticket": "",
    "no signature": "abc",
    "an empty signature": "abc.",
    "a signature that is not ASCII": "abc.é",
    "a very long ticket": "a" * 100_000 + "." + "0" * 64,
}


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED)
def test_malformed_ticket_is_rejected(text: str) -> None:
    with pytest.raises(InvalidTicket):
        TicketKeyring([OLD]).verify({TICKET_HEADER: text})


def test_message_without_headers_has_no_ticket() -> None:
    for headers in (None, {}, {"X": "y"}):
        with pytest.raises(InvalidTicket, match="no ticket"):
            TicketKeyring([OLD]).verify(headers)


def test_tickets_of_both_keys_are_valid_during_a_rotation() -> None:
    before, during, after = TicketKeyring([OLD]), TicketKeyring([NEW, OLD]), TicketKeyring([NEW])
    assert during.verify(ticket_headers(before.sign(TICKET))) == TICKET
    assert after.verify(ticket_headers(during.sign(TICKET))) == TICKET
    with pytest.raises(InvalidTicket):
        after.verify(ticket_headers(before.sign(TICKET)))


def test_replaced_keys_are_used_from_then_on() -> None:
    keys = TicketKeyring([OLD])
    keys.replace([NEW])
    assert keys.sign(TICKET) == TicketKeyring([NEW]).sign(TICKET)


def test_record_in_the_headers_counts_only_if_it_belongs_to_the_ticket() -> None:
    changed = msgspec.structs.replace(RECORD, attempts=3, worker="w")
    assert header_record(record_headers(RecordAtRevision(changed, 7)), TICKET) == RecordAtRevision(changed, 7)
    for field in ("request_hash", "function_id", "serverless_request_id", "reply_to"):
        forged = msgspec.structs.replace(RECORD, **{field: "other"})
        assert header_record(record_headers(RecordAtRevision(forged, 7)), TICKET) is None
    for field in ("enqueued_at", "deadline"):
        forged = msgspec.structs.replace(RECORD, **{field: NOW + timedelta(days=1)})
        assert header_record(record_headers(RecordAtRevision(forged, 7)), TICKET) is None
    assert header_record({}, TICKET) is None


def test_message_id_depends_on_the_key_and_on_every_part() -> None:
    keys = TicketKeyring([OLD])
    ids = {
        keys.message_id("a", "b"),
        keys.message_id("ab", ""),
        keys.message_id("a", "c"),
        TicketKeyring([NEW]).message_id("a", "b"),
        worker_message_id("a", "b"),
        worker_message_id("ab", ""),
    }
    assert len(ids) == 6
    assert keys.message_id("a", "b") == TicketKeyring([OLD, NEW]).message_id("a", "b")


def test_key_file_has_one_or_two_keys() -> None:
    old, new = OLD.hex(), NEW.hex().upper()
    assert parse_ticket_keys(f"{old}\n") == (OLD,)
    assert parse_ticket_keys(f"\n  {new}\r\n{old}") == (NEW, OLD)


INVALID_FILES = {
    "no key": ("", "has 0 keys"),
    "three keys": ("\n".join(character * 64 for character in "abc"), "has 3 keys"),
    "the same key twice": (f"{'ab' * 32}\n{'AB' * 32}", "the same key twice"),
    "a short key": ("ab" * 31, "line 1 has 31 bytes; use at least 32 bytes"),
    "not hexadecimal": (f"{'ab' * 32}\nsecret", "line 2 is not a key"),
}


@pytest.mark.parametrize(("text", "error"), INVALID_FILES.values(), ids=INVALID_FILES)
def test_invalid_key_file_is_rejected_without_its_content(text: str, error: str) -> None:
    with pytest.raises(InvalidTicketKeys, match=error) as rejected:
        parse_ticket_keys(text)
    assert "secret" not in str(rejected.value)
