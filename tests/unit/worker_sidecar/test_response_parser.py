"""Parsing of framework responses: the result does not depend on how the bytes arrive, and bad HTTP is rejected."""

from collections.abc import Iterable

import pytest

from gpu_runtime.worker_sidecar.framework_response import (
    MAX_HEAD_BYTES,
    IncompleteResponse,
    MalformedResponse,
    ParsedResponse,
    ResponseParser,
)

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
LIMIT = 10


def parse(pieces: Iterable[bytes]) -> ParsedResponse:
    parser = ResponseParser(lambda status: LIMIT if status < 300 else 3)
    for piece in pieces:
        if response := parser.feed(piece):
            return response
    response = parser.feed_eof()
    assert response is not None
    return response


def byte_by_byte(data: bytes) -> list[bytes]:
    return [data[index : index + 1] for index in range(len(data))]


COMPLETE = [
    ("Content-Length", OK + b"Content-Length: 3\r\n\r\nabc", b"abc", True),
    ("an empty body", OK + b"Content-Length: 0\r\n\r\n", b"", True),
    ("the same Content-Length twice", OK + b"Content-Length: 3\r\ncontent-length:3\r\n\r\nabc", b"abc", True),
    ("chunks", CHUNKED + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", b"abcde", True),
    ("chunk extensions and trailers", CHUNKED + b"03 ; x=y\r\nabc\r\n0\r\nTrailer: x\r\n\r\n", b"abc", True),
    ("status 204 with a Content-Length", b"HTTP/1.1 204 No\r\nContent-Length: 3\r\n\r\n", b"", True),
    ("an interim response first", b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 1\r\n\r\nx", b"x", True),
    ("lines without CR", b"HTTP/1.1 200 OK\nContent-Length: 1\n\nx", b"x", True),
    ("no reason phrase", b"HTTP/1.1 200\r\nContent-Length: 1\r\n\r\nx", b"x", True),
    ("no Content-Length", OK + b"\r\nabc", b"abc", False),
    ("Connection: close", OK + b"Connection: x, Close\r\nContent-Length: 1\r\n\r\nx", b"x", False),
    ("HTTP/1.0", b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", b"x", False),
]


@pytest.mark.parametrize(("data", "body", "reusable"), [row[1:] for row in COMPLETE], ids=[row[0] for row in COMPLETE])
def test_response_is_parsed_equally_for_any_chunking(data: bytes, body: bytes, reusable: bool) -> None:
    response = parse([data])
    assert (response.body, response.complete, response.reusable) == (body, True, reusable)
    assert parse(byte_by_byte(data)) == response


@pytest.mark.parametrize(
    ("data", "content_length"),
    [
        (OK + b"Content-Length: 11\r\n\r\n0123456789a", 11),
        (CHUNKED + b"6\r\n012345\r\n6\r\n6789ab\r\n0\r\n\r\n", 0),
        (CHUNKED + b"fffffffff\r\n0123456789a", 0),
        (OK + b"\r\n0123456789a", 0),
    ],
)
def test_response_body_above_the_limit_is_truncated(data: bytes, content_length: int) -> None:
    for pieces in ([data], byte_by_byte(data)):
        response = parse(pieces)
        assert (response.body, response.complete, response.content_length) == (b"0123456789", False, content_length)
        assert not response.reusable


def test_body_limit_depends_on_the_status() -> None:
    assert parse([b"HTTP/1.1 500 No\r\nContent-Length: 4\r\n\r\noops"]).body == b"oop"


def test_header_names_are_lowercase_and_the_first_value_wins() -> None:
    response = parse([OK + b"Content-TYPE:  a/b \t\r\ncontent-type: c/d\r\nX: \xff\xc3\xbc\r\nEmpty:\r\n\r\n"])
    assert response.headers == {"content-type": "a/b", "x": "\udcff\u00fc", "empty": ""}


def test_extra_bytes_make_the_connection_not_reusable() -> None:
    assert not parse([OK + b"Content-Length: 1\r\n\r\nxHTTP/1.1 200 OK\r\n"]).reusable


MALFORMED = [
    ("another protocol", b"220 mail.example ESMTP\r\n"),
    ("another HTTP version", b"HTTP/2 200\r\n"),
    ("a status of four digits", b"HTTP/1.1 2000 OK\r\n"),
    ("a head without a line end", b"a" * MAX_HEAD_BYTES),
    ("too many headers", OK + b"A: b\r\n" * MAX_HEAD_BYTES),
    ("too many interim responses", b"HTTP/1.1 100 Go\r\n\r\n" * MAX_HEAD_BYTES),
    ("too many trailers", CHUNKED + b"0\r\n" + b"A: b\r\n" * MAX_HEAD_BYTES),
    ("a header without a name", OK + b": x\r\n"),
    ("a folded header", OK + b"A: b\r\n c\r\n"),
    ("a control character in a header", OK + b"A: \x00\r\n"),
    ("a CR in a header", OK + b"A: b\rc\r\n"),
    ("a negative Content-Length", OK + b"Content-Length: -1\r\n\r\n"),
    ("a Content-Length of 5000 digits", OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n"),
    ("two different Content-Lengths", OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n"),
    ("Content-Length and chunks", OK + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"),
    ("another transfer coding", OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n"),
    ("a chunk size that is not a number", CHUNKED + b"x\r\n"),
    ("a chunk size of 16 digits", CHUNKED + b"1" * 16 + b"\r\n"),
    ("a chunk longer than its size", CHUNKED + b"1\r\nab\r\n"),
    ("a malformed trailer", CHUNKED + b"0\r\nx\r\n"),
]


@pytest.mark.parametrize("data", [row[1] for row in MALFORMED], ids=[row[0] for row in MALFORMED])
def test_malformed_response_is_rejected_immediately(data: bytes) -> None:
    parser = ResponseParser(lambda _: LIMIT)
    with pytest.raises(MalformedResponse):
        parser.feed(data)


@pytest.mark.parametrize(
    "data", [b"", b"HTT", OK, OK + b"A: b\r\n", OK + b"Content-Length: 2\r\n\r\na", CHUNKED, CHUNKED + b"2\r\na"]
)
def test_incomplete_response_is_an_error(data: bytes) -> None:
    parser = ResponseParser(lambda _: LIMIT)
    assert parser.feed(data) is None
    with pytest.raises(IncompleteResponse):
        parser.feed_eof()
