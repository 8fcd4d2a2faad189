"""What a result's headers say of its invocation's record is taken whole or not at all."""

from datetime import UTC, datetime

import pytest

from gpu_runtime.contract.messages.invocation_record import (
    RECORD,
    REVISION,
    InvocationRecord,
    Known,
    headers_of,
    known_from,
)

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
KNOWN = Known(
    InvocationRecord(
        request_hash="abc", serverless_request_id="thumbs", enqueued_at=NOW, deadline=NOW, updated_at=NOW, worker="w"
    ),
    revision=42,
)


def test_headers_say_the_record_and_its_revision() -> None:
    headers = headers_of(KNOWN)
    assert known_from(headers) == KNOWN
    assert all("\n" not in value and value.isascii() for value in headers.values())


@pytest.mark.parametrize(
    "change",
    [
        {REVISION: ""},
        {REVISION: "x"},
        {REVISION: "-1"},
        {REVISION: "²"},
        {RECORD: ""},
        {RECORD: "{"},
        {RECORD: '{"version":9}'},
    ],
)
def test_whoever_cannot_read_all_of_it_reads_the_record_itself(change: dict[str, str]) -> None:
    assert known_from(headers_of(KNOWN) | change) is None
