"""An answer of a framework as bytes: what it says, however it is cut into pieces, and when it is refused."""

from collections.abc import Iterable

import pytest

from gpu_runtime.worker_sidecar.http_response_parser import (
    MAX_HEAD_BYTES,
    IncompleteResponse,
    MalformedResponse,
    ParsedResponse,
    ResponseParser,
)

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
LIMIT = 10


def read(pieces: Iterable[bytes]) -> ParsedResponse:
    reading = ResponseParser(lambda status: LIMIT if status < 300 else 3)
    for piece in pieces:
        if answer := reading.feed(piece):
            return answer
    answer = reading.feed_eof()
    assert answer is not None
    return answer


def byte_by_byte(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


WHOLE = [
    ("a length", OK + b"Content-Length: 3\r\n\r\nabc", b"abc", True),
    ("no body", OK + b"Content-Length: 0\r\n\r\n", b"", True),
    ("the same length twice", OK + b"Content-Length: 3\r\ncontent-length:3\r\n\r\nabc", b"abc", True),
    ("chunks", CHUNKED + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", b"abcde", True),
    ("extensions and trailers", CHUNKED + b"03 ; x=y\r\nabc\r\n0\r\nTrailer: x\r\n\r\n", b"abc", True),
    ("no content, whatever it announces", b"HTTP/1.1 204 No\r\nContent-Length: 3\r\n\r\n", b"", True),
    ("an interim answer before it", b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 1\r\n\r\nx", b"x", True),
    ("lines without CR", b"HTTP/1.1 200 OK\nContent-Length: 1\n\nx", b"x", True),
    ("no reason", b"HTTP/1.1 200\r\nContent-Length: 1\r\n\r\nx", b"x", True),
    ("no length", OK + b"\r\nabc", b"abc", False),
    ("a connection that ends", OK + b"Connection: x, Close\r\nContent-Length: 1\r\n\r\nx", b"x", False),
    ("an older version", b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", b"x", False),
]


@pytest.mark.parametrize(("data", "body", "reusable"), [row[1:] for row in WHOLE], ids=[row[0] for row in WHOLE])
def test_response_is_parsed_equally_for_any_chunking(data: bytes, body: bytes, reusable: bool) -> None:
    answer = read([data])
    assert (answer.body, answer.complete, answer.reusable) == (body, True, reusable)
    assert read(byte_by_byte(data)) == answer


@pytest.mark.parametrize(
    ("data", "announced"),
    [
        (OK + b"Content-Length: 11\r\n\r\n0123456789a", 11),
        (CHUNKED + b"6\r\n012345\r\n6\r\n6789ab\r\n0\r\n\r\n", 0),
        (CHUNKED + b"fffffffff\r\n0123456789a", 0),
        (OK + b"\r\n0123456789a", 0),
    ],
)
def test_response_body_above_the_limit_is_truncated(data: bytes, announced: int) -> None:
    for pieces in ([data], byte_by_byte(data)):
        answer = read(pieces)
        assert (answer.body, answer.complete, answer.content_length) == (b"0123456789", False, announced)
        assert not answer.reusable


def test_body_limit_depends_on_the_status() -> None:
    assert read([b"HTTP/1.1 500 No\r\nContent-Length: 4\r\n\r\noops"]).body == b"oop"


def test_header_names_are_lowercase_and_the_first_value_wins() -> None:
    answer = read([OK + b"Content-TYPE:  a/b \t\r\ncontent-type: c/d\r\nX: \xff\xc3\xbc\r\nEmpty:\r\n\r\n"])
    assert answer.headers == {"content-type": "a/b", "x": "\udcff\u00fc", "empty": ""}


def test_extra_bytes_make_the_connection_not_reusable() -> None:
    assert not read([OK + b"Content-Length: 1\r\n\r\nxHTTP/1.1 200 OK\r\n"]).reusable


MALFORMED = [
    ("another protocol", b"220 mail.example ESMTP\r\n"),
    ("another version", b"HTTP/2 200\r\n"),
    ("four digits", b"HTTP/1.1 2000 OK\r\n"),
    ("a head that is nothing but one line", b"a" * MAX_HEAD_BYTES),
    ("a head of many lines", OK + b"A: b\r\n" * MAX_HEAD_BYTES),
    ("interim answers without an end", b"HTTP/1.1 100 Go\r\n\r\n" * MAX_HEAD_BYTES),
    ("trailers without an end", CHUNKED + b"0\r\n" + b"A: b\r\n" * MAX_HEAD_BYTES),
    ("a header without a name", OK + b": x\r\n"),
    ("a folded header", OK + b"A: b\r\n c\r\n"),
    ("a control character", OK + b"A: \x00\r\n"),
    ("a CR within", OK + b"A: b\rc\r\n"),
    ("a length that is none", OK + b"Content-Length: -1\r\n\r\n"),
    ("an endless length", OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n"),
    ("two lengths", OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n"),
    ("a length and chunks", OK + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"),
    ("another coding", OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n"),
    ("a chunk's length that is none", CHUNKED + b"x\r\n"),
    ("an endless chunk's length", CHUNKED + b"1" * 16 + b"\r\n"),
    ("a chunk that is longer than it says", CHUNKED + b"1\r\nab\r\n"),
    ("a trailer that is none", CHUNKED + b"0\r\nx\r\n"),
]


@pytest.mark.parametrize("data", [row[1] for row in MALFORMED], ids=[row[0] for row in MALFORMED])
def test_malformed_response_is_rejected_immediately(data: bytes) -> None:
    reading = ResponseParser(lambda _: LIMIT)
    with pytest.raises(MalformedResponse):
        reading.feed(data)


@pytest.mark.parametrize(
    "data", [b"", b"HTT", OK, OK + b"A: b\r\n", OK + b"Content-Length: 2\r\n\r\na", CHUNKED, CHUNKED + b"2\r\na"]
)
def test_incomplete_response_is_an_error(data: bytes) -> None:
    reading = ResponseParser(lambda _: LIMIT)
    assert reading.feed(data) is None
    with pytest.raises(IncompleteResponse):
        reading.feed_eof()
