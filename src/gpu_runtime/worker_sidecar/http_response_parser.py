"""An answer in HTTP/1.1, read from bytes as they come. Nothing here awaits.

A stranger's program wrote it: what is not plain HTTP is refused, never guessed, and nothing is kept beyond the limits.
A line may end without its CR, as it does where somebody writes the protocol by hand.
"""

import re
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

T = TypeVar("T")

MAX_HEAD_BYTES = 64 * 1024
"""Bytes of the head, of all interim answers before it, and of the trailers."""

CHUNKED, UNTIL_EOF = -1, -2
"""Lengths of bodies that say it as they go, or not at all."""

BODYLESS_STATUSES = frozenset({204, 304})

_STATUS_LINE = re.compile(rb"HTTP/1\.([0-9]) ([0-9]{3})(?: [^\r\n]*)?")
_HEADER_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\t -~\x80-\xff]*)")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t -~\x80-\xff]*)?")
_CONTENT_LENGTH = re.compile(r"[0-9]{1,15}")
_FRAMING_HEADERS = frozenset({"content-length", "transfer-encoding"})


class MalformedResponse(Exception):
    """What came is not HTTP, or not as the contract wants it."""


class IncompleteResponse(Exception):
    """The connection ended before the answer did."""


@dataclass(frozen=True)
class ParsedResponse:
    status: int
    headers: dict[str, str]
    """By name in lower case. Of several with one name, the first."""

    body: bytes
    complete: bool
    """Whether that is all of the body."""

    content_length: int
    """The size of the body as the head has it; 0 where it does not say."""

    reusable: bool
    """Whether the connection may be used for another request."""


ParseStep: TypeAlias = Generator[None, None, T]
"""A step of reading, which stops wherever it needs more bytes."""


class ResponseParser:
    """One answer. How much of its body is kept depends on its status."""

    def __init__(self, limit_of: Callable[[int], int]) -> None:
        self._max_body_bytes = limit_of
        self._buffer = bytearray()
        self._eof = False
        self._remaining_head_bytes = MAX_HEAD_BYTES
        self._steps = self._read_response()
        next(self._steps)

    def feed(self, data: bytes) -> ParsedResponse | None:
        """The answer, as soon as it is complete or long enough. Garbled if it is none."""
        self._buffer += data
        return self._advance()

    def feed_eof(self) -> ParsedResponse | None:
        """There will be no more bytes. Lost, unless that is how the answer says that it is complete."""
        self._eof = True
        return self._advance()

    def _advance(self) -> ParsedResponse | None:
        try:
            next(self._steps)
        except StopIteration as done:
            answer: ParsedResponse = done.value
            return answer
        return None

    def _read_response(self) -> ParseStep[ParsedResponse]:
        status, headers, persistent = yield from self._read_head()
        while 100 <= status < 200 and status != 101:  # interim: the answer is still to come
            status, headers, persistent = yield from self._read_head()
        length = 0 if status in BODYLESS_STATUSES or status == 101 else _body_length(headers)
        body, whole = yield from self._read_body(length, self._max_body_bytes(status))
        reusable = persistent and whole and length != UNTIL_EOF and not self._buffer
        return ParsedResponse(status, headers, body, whole, max(0, length), reusable)

    def _read_head(self) -> ParseStep[tuple[int, dict[str, str], bool]]:
        """The status, the headers, and whether the connection is to be kept."""
        match = _STATUS_LINE.fullmatch((yield from self._read_line()))
        if not match:
            raise MalformedResponse("it does not begin like an answer")
        headers = yield from self._read_headers()
        return int(match[2]), headers, match[1] == b"1" and not _closes_connection(headers)

    def _read_headers(self) -> ParseStep[dict[str, str]]:
        headers: dict[str, str] = {}
        while line := (yield from self._read_line()):
            _add_header(headers, line)
        return headers

    def _read_body(self, length: int, limit: int) -> ParseStep[tuple[bytes, bool]]:
        if length == CHUNKED:
            return (yield from self._read_chunked(limit))
        if length == UNTIL_EOF:
            return (yield from self._read_until_eof(limit))
        body = yield from self._read_exactly(min(length, limit))
        return body, length <= limit

    def _read_until_eof(self, limit: int) -> ParseStep[tuple[bytes, bool]]:
        while not self._eof and len(self._buffer) <= limit:
            yield
        whole = len(self._buffer) <= limit
        return (yield from self._read_exactly(min(len(self._buffer), limit))), whole

    def _read_chunked(self, limit: int) -> ParseStep[tuple[bytes, bool]]:
        body = bytearray()
        while size := (yield from self._read_chunk_size()):
            body += yield from self._read_exactly(min(size, limit + 1 - len(body)))
            if len(body) > limit:
                return bytes(body[:limit]), False
            if (yield from self._read_line()):
                raise MalformedResponse("a chunk has another length than it says")
        self._remaining_head_bytes = MAX_HEAD_BYTES
        yield from self._read_headers()
        return bytes(body), True

    def _read_chunk_size(self) -> ParseStep[int]:
        self._remaining_head_bytes = MAX_HEAD_BYTES
        match = _CHUNK_SIZE.fullmatch((yield from self._read_line()))
        if not match:
            raise MalformedResponse("the length of a chunk is malformed")
        return int(match[1], 16)

    def _read_line(self) -> ParseStep[bytes]:
        while (end := self._buffer.find(b"\n", 0, self._remaining_head_bytes)) < 0:
            if len(self._buffer) >= self._remaining_head_bytes:
                raise MalformedResponse("its head is too large")
            yield from self._wait_for_data()
        self._remaining_head_bytes -= end + 1
        return (yield from self._read_exactly(end + 1))[:-1].removesuffix(b"\r")

    def _read_exactly(self, length: int) -> ParseStep[bytes]:
        while len(self._buffer) < length:
            yield from self._wait_for_data()
        taken = bytes(self._buffer[:length])
        del self._buffer[:length]
        return taken

    def _wait_for_data(self) -> ParseStep[None]:
        if self._eof:
            raise IncompleteResponse("the framework closed it")
        yield


def _add_header(headers: dict[str, str], line: bytes) -> None:
    match = _HEADER_LINE.fullmatch(line)
    if not match:
        raise MalformedResponse("a header is malformed")
    name, value = match[1].decode("ascii").lower(), match[2].strip(b" \t").decode(errors="surrogateescape")
    if headers.setdefault(name, value) != value and name in _FRAMING_HEADERS:
        raise MalformedResponse("it says two things of its length")


def _closes_connection(headers: dict[str, str]) -> bool:
    return any(option.strip().lower() == "close" for option in headers.get("connection", "").split(","))


def _body_length(headers: dict[str, str]) -> int:
    """Of the body. Two ways to say it, of which one is used: two opinions on where an answer ends are a fault."""
    length, coding = headers.get("content-length"), headers.get("transfer-encoding")
    if coding is not None:
        if length is not None or coding.lower() != "chunked":
            raise MalformedResponse("of Transfer-Encoding only 'chunked' is read, and without Content-Length")
        return CHUNKED
    if length is None:
        return UNTIL_EOF
    if not _CONTENT_LENGTH.fullmatch(length):
        raise MalformedResponse("Content-Length is not a number of bytes")
    return int(length)
