"""Reads the response of the framework: parses its HTTP/1.1, and maps its status and body to an outcome.

User code produces the response. So the parser rejects malformed HTTP and limits how many bytes it buffers. But it
accepts lines that end with LF instead of CRLF, because hand-written servers often send them. Nothing here awaits.

2xx                     HandlerSucceeded  the body is the result
422 and other 4xx       HandlerRejected   the invocation fails and is not retried
408, 504                TimedOut          the deadline passed
425, 429, 503           RetryRequested    the invocation is retried later
500 and other 5xx       HandlerFailed     the invocation fails with the error of the handler
other status, or none   FrameworkFailed   the framework violates the contract or is not running
"""

import json
import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

MAX_ERROR_MESSAGE_LENGTH = 4096
MAX_ERROR_TYPE_LENGTH = 128
MAX_RETRY_AFTER_SECONDS = 86_400.0

MAX_HEAD_BYTES = 64 * 1024
"""Maximum size of the head, including all interim responses before it. Also the maximum size of the trailers."""

CHUNKED, UNTIL_EOF = -1, -2
"""Special body lengths. CHUNKED: each chunk has its own length. UNTIL_EOF: the body ends when the connection ends."""

BODYLESS_STATUSES = frozenset({204, 304})

_STATUS_LINE = re.compile(rb"HTTP/1\.([0-9]) ([0-9]{3})(?: [^\r\n]*)?")
_HEADER_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\t -~\x80-\xff]*)")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t -~\x80-\xff]*)?")
_CONTENT_LENGTH = re.compile(r"[0-9]{1,15}")
_FRAMING_HEADERS = frozenset({"content-length", "transfer-encoding"})


class FrameworkFailureKind(Enum):
    """How the framework failed. The kind determines whether the invocation is retried."""

    UNREACHABLE = "unreachable"
    """The client could not connect, so the handler was not called."""
    CONNECTION_LOST = "connection_lost"
    """The connection closed before the end of the response, so the handler may have run."""
    MALFORMED_RESPONSE = "malformed_response"
    """The response is not valid HTTP, or it violates the contract."""


@dataclass(frozen=True)
class HandlerSucceeded:
    status: int
    content_type: str
    body: bytes
    full_body_bytes: int | None = None
    """Size of the full body, or a lower bound of it, if `body` was truncated. None if `body` is complete."""


@dataclass(frozen=True)
class HandlerFailed:
    error_type: str
    message: str
    status: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class HandlerRejected:
    error_type: str
    message: str
    status: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class RetryRequested:
    error_type: str
    message: str
    retry_after_seconds: float | None = None
    """Delay that the framework requested. If it is None, the sidecar uses its backoff."""


@dataclass(frozen=True)
class TimedOut:
    message: str


@dataclass(frozen=True)
class FrameworkFailed:
    kind: FrameworkFailureKind
    reason: str


FrameworkOutcome: TypeAlias = (
    HandlerSucceeded | HandlerFailed | HandlerRejected | RetryRequested | TimedOut | FrameworkFailed
)


def is_success(status: int) -> bool:
    """Return whether the status means that the handler succeeded."""
    return 200 <= status < 300


def outcome_of(status: int, headers: Mapping[str, str], body: bytes) -> FrameworkOutcome:
    """Return the outcome of a response. Header names must be lower case."""
    if is_success(status):
        return HandlerSucceeded(status, replace_surrogates(headers.get("content-type", "")), body)
    kind, message = _parse_error(status, body)
    if status in (408, 504):
        return TimedOut(message)
    if status in (425, 429, 503):
        return RetryRequested(kind, message, _parse_retry_after(headers.get("retry-after", "")))
    if 400 <= status < 500:
        return HandlerRejected(kind, message, status)
    if 500 <= status < 600:
        return HandlerFailed(kind, message, status)
    return FrameworkFailed(
        FrameworkFailureKind.MALFORMED_RESPONSE,
        f"the framework returned status {status}, which the contract does not define",
    )


def _parse_error(status: int, body: bytes) -> tuple[str, str]:
    """Return the type and the message of an error response.

    User code produces the body, so any part may be missing or too long. If the body does not follow the contract, the
    type is the status and the message is the text of the body.
    """
    try:
        document: Any = json.loads(body)
        error = document["error"]
        return _truncate(str(error["type"]), MAX_ERROR_TYPE_LENGTH), _truncate(
            str(error["message"]), MAX_ERROR_MESSAGE_LENGTH
        )
    except (ValueError, LookupError, TypeError, RecursionError):
        return f"HTTP {status}", _truncate(body.decode(errors="replace").strip(), MAX_ERROR_MESSAGE_LENGTH)


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, because messages are UTF-8 and cannot contain them.

    Lone surrogates come from JSON escapes and from header bytes that are not UTF-8.
    """
    return text.encode(errors="replace").decode()


def _truncate(text: str, limit: int) -> str:
    text = replace_surrogates(text)
    return text if len(text) <= limit else f"{text[:limit]}… (cut off)"


def _parse_retry_after(text: str) -> float | None:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        return None
    return min(float(text), MAX_RETRY_AFTER_SECONDS)


class MalformedResponse(Exception):
    """The response is not valid HTTP, or it violates the contract."""


class IncompleteResponse(Exception):
    """The connection closed before the end of the response."""


@dataclass(frozen=True)
class ParsedResponse:
    """A response whose body may be truncated at the limit."""

    status: int
    headers: dict[str, str]
    """Header values by lower-case name. If a name occurs more than once, the first value is used."""

    body: bytes
    complete: bool
    """Whether `body` is the full body."""

    content_length: int
    """Content-Length of the response. 0 if the response has no Content-Length."""

    reusable: bool
    """Whether the client may send another request on the connection."""


ParseStep: TypeAlias = Generator[None, None, T]
"""A generator that yields whenever it needs more bytes, and returns its result."""


class ResponseParser:
    """Parses one response. `limit_of` returns the maximum number of body bytes for a status."""

    def __init__(self, limit_of: Callable[[int], int]) -> None:
        self._max_body_bytes = limit_of
        self._buffer = bytearray()
        self._eof = False
        self._remaining_head_bytes = MAX_HEAD_BYTES
        self._steps = self._read_response()
        next(self._steps)

    def feed(self, data: bytes) -> ParsedResponse | None:
        """Parse more bytes. Return the response when it is complete or its body reaches the limit, else None.

        Raise MalformedResponse if the response is invalid.
        """
        self._buffer += data
        return self._advance()

    def feed_eof(self) -> ParsedResponse | None:
        """Parse the end of the connection. Raise IncompleteResponse if the response is not complete."""
        self._eof = True
        return self._advance()

    def _advance(self) -> ParsedResponse | None:
        try:
            next(self._steps)
        except StopIteration as done:
            response: ParsedResponse = done.value
            return response
        return None

    def _read_response(self) -> ParseStep[ParsedResponse]:
        status, headers, persistent = yield from self._read_head()
        while 100 <= status < 200 and status != 101:  # an interim response: the final response follows
            status, headers, persistent = yield from self._read_head()
        length = 0 if status in BODYLESS_STATUSES or status == 101 else _body_length(headers)
        body, complete = yield from self._read_body(length, self._max_body_bytes(status))
        reusable = persistent and complete and length != UNTIL_EOF and not self._buffer
        return ParsedResponse(status, headers, body, complete, max(0, length), reusable)

    def _read_head(self) -> ParseStep[tuple[int, dict[str, str], bool]]:
        """Return the status, the headers, and whether the connection stays open."""
        match = _STATUS_LINE.fullmatch((yield from self._read_line()))
        if not match:
            raise MalformedResponse("the status line is invalid")
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
        complete = len(self._buffer) <= limit
        return (yield from self._read_exactly(min(len(self._buffer), limit))), complete

    def _read_chunked(self, limit: int) -> ParseStep[tuple[bytes, bool]]:
        body = bytearray()
        while size := (yield from self._read_chunk_size()):
            body += yield from self._read_exactly(min(size, limit + 1 - len(body)))
            if len(body) > limit:
                return bytes(body[:limit]), False
            if (yield from self._read_line()):
                raise MalformedResponse("the length of a chunk does not match its size line")
        self._remaining_head_bytes = MAX_HEAD_BYTES
        yield from self._read_headers()
        return bytes(body), True

    def _read_chunk_size(self) -> ParseStep[int]:
        self._remaining_head_bytes = MAX_HEAD_BYTES
        match = _CHUNK_SIZE.fullmatch((yield from self._read_line()))
        if not match:
            raise MalformedResponse("the size line of a chunk is malformed")
        return int(match[1], 16)

    def _read_line(self) -> ParseStep[bytes]:
        while (end := self._buffer.find(b"\n", 0, self._remaining_head_bytes)) < 0:
            if len(self._buffer) >= self._remaining_head_bytes:
                raise MalformedResponse("the head is too large")
            yield from self._wait_for_data()
        self._remaining_head_bytes -= end + 1
        return (yield from self._read_exactly(end + 1))[:-1].removesuffix(b"\r")

    def _read_exactly(self, length: int) -> ParseStep[bytes]:
        while len(self._buffer) < length:
            yield from self._wait_for_data()
        data = bytes(self._buffer[:length])
        del self._buffer[:length]
        return data

    def _wait_for_data(self) -> ParseStep[None]:
        if self._eof:
            raise IncompleteResponse("the framework closed the connection")
        yield


def _add_header(headers: dict[str, str], line: bytes) -> None:
    match = _HEADER_LINE.fullmatch(line)
    if not match:
        raise MalformedResponse("a header is malformed")
    name, value = match[1].decode("ascii").lower(), match[2].strip(b" \t").decode(errors="surrogateescape")
    if headers.setdefault(name, value) != value and name in _FRAMING_HEADERS:
        raise MalformedResponse(f"the header {name} occurs twice with different values")


def _closes_connection(headers: dict[str, str]) -> bool:
    return any(option.strip().lower() == "close" for option in headers.get("connection", "").split(","))


def _body_length(headers: dict[str, str]) -> int:
    """Return the length of the body, or CHUNKED or UNTIL_EOF.

    A response with both Content-Length and Transfer-Encoding is an error, because the two may define different ends of
    the body.
    """
    length, coding = headers.get("content-length"), headers.get("transfer-encoding")
    if coding is not None:
        if length is not None or coding.lower() != "chunked":
            raise MalformedResponse("unsupported Transfer-Encoding; use only 'chunked', without Content-Length")
        return CHUNKED
    if length is None:
        return UNTIL_EOF
    if not _CONTENT_LENGTH.fullmatch(length):
        raise MalformedResponse("Content-Length is not a number of bytes")
    return int(length)
