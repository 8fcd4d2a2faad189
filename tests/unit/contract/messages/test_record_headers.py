"""The record headers of a message are used only if both are present and valid."""

from datetime import UTC, datetime

import pytest

from gpu_runtime.contract.messages.invocation_record import (
    RECORD_HEADER,
    REVISION_HEADER,
    InvocationRecord,
    RecordAtRevision,
    record_from_headers,
    record_headers,
)

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
RECORD_AT_REVISION = RecordAtRevision(
    InvocationRecord(
        request_hash="abc",
        serverless_request_id="thumbs",
        function_id="thumbs",
        enqueued_at=NOW,
        deadline=NOW,
        updated_at=NOW,
        worker="w",
    ),
    revision=42,
)


def test_record_headers_round_trip() -> None:
    headers = record_headers(RECORD_AT_REVISION)
    assert record_from_headers(headers) == RECORD_AT_REVISION
    assert all("\n" not in value and value.isascii() for value in headers.values())


@pytest.mark.parametrize(
    "change",
    [
        {REVISION_HEADER: ""},
        {REVISION_HEADER: "x"},
        {REVISION_HEADER: "-1"},
        {REVISION_HEADER: "²"},
        {RECORD_HEADER: ""},
        {RECORD_HEADER: "{"},
        {RECORD_HEADER: '{"version":9}'},
    ],
)
def test_incomplete_or_invalid_record_headers_are_ignored(change: dict[str, str]) -> None:
    assert record_from_headers(record_headers(RECORD_AT_REVISION) | change) is None
