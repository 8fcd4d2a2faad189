"""An answer in HTTP/1.1, read from bytes as they come. Nothing here awaits.

A stranger's program wrote it: what is not plain HTTP is refused, never guessed, and nothing is kept beyond the limits.
A line may end without its CR, as it does where somebody writes the protocol by hand.
"""

import re
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

T = TypeVar("T")

HEAD_LIMIT = 64 * 1024
"""Bytes of the head, of all interim answers before it, and of the trailers."""

CHUNKED, UNTIL_THE_END = -1, -2
"""Lengths of bodies that say it as they go, or not at all."""

BODILESS = frozenset({204, 304})

_STATUS_LINE = re.compile(rb"HTTP/1\.([0-9]) ([0-9]{3})(?: [^\r\n]*)?")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\t -~\x80-\xff]*)")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t -~\x80-\xff]*)?")
_LENGTH = re.compile(r"[0-9]{1,15}")
_FRAMING = frozenset({"content-length", "transfer-encoding"})


class Garbled(Exception):
    """What came is not HTTP, or not as the contract wants it."""


class Lost(Exception):
    """The connection ended before the answer did."""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    """By name in lower case. Of several with one name, the first."""

    body: bytes
    whole: bool
    """Whether that is all of the body."""

    announced: int
    """The size of the body as the head has it; 0 where it does not say."""

    reusable: bool
    """Whether the connection may be used for another request."""


Reads: TypeAlias = Generator[None, None, T]
"""A step of reading, which stops wherever it needs more bytes."""


class Reading:
    """One answer. How much of its body is kept depends on its status."""

    def __init__(self, limit_of: Callable[[int], int]) -> None:
        self._limit_of = limit_of
        self._bytes = bytearray()
        self._ended = False
        self._left = HEAD_LIMIT
        self._steps = self._answer()
        next(self._steps)

    def feed(self, data: bytes) -> Answer | None:
        """The answer, as soon as it is complete or long enough. Garbled if it is none."""
        self._bytes += data
        return self._go_on()

    def end(self) -> Answer | None:
        """There will be no more bytes. Lost, unless that is how the answer says that it is complete."""
        self._ended = True
        return self._go_on()

    def _go_on(self) -> Answer | None:
        try:
            next(self._steps)
        except StopIteration as done:
            answer: Answer = done.value
            return answer
        return None

    def _answer(self) -> Reads[Answer]:
        status, headers, persistent = yield from self._head()
        while 100 <= status < 200 and status != 101:  # interim: the answer is still to come
            status, headers, persistent = yield from self._head()
        length = 0 if status in BODILESS or status == 101 else _length(headers)
        body, whole = yield from self._body(length, self._limit_of(status))
        reusable = persistent and whole and length != UNTIL_THE_END and not self._bytes
        return Answer(status, headers, body, whole, max(0, length), reusable)

    def _head(self) -> Reads[tuple[int, dict[str, str], bool]]:
        """The status, the headers, and whether the connection is to be kept."""
        match = _STATUS_LINE.fullmatch((yield from self._line()))
        if not match:
            raise Garbled("it does not begin like an answer")
        headers = yield from self._fields()
        return int(match[2]), headers, match[1] == b"1" and not _closes(headers)

    def _fields(self) -> Reads[dict[str, str]]:
        headers: dict[str, str] = {}
        while line := (yield from self._line()):
            _add(headers, line)
        return headers

    def _body(self, length: int, limit: int) -> Reads[tuple[bytes, bool]]:
        if length == CHUNKED:
            return (yield from self._chunked(limit))
        if length == UNTIL_THE_END:
            return (yield from self._until_the_end(limit))
        body = yield from self._exactly(min(length, limit))
        return body, length <= limit

    def _until_the_end(self, limit: int) -> Reads[tuple[bytes, bool]]:
        while not self._ended and len(self._bytes) <= limit:
            yield
        whole = len(self._bytes) <= limit
        return (yield from self._exactly(min(len(self._bytes), limit))), whole

    def _chunked(self, limit: int) -> Reads[tuple[bytes, bool]]:
        body = bytearray()
        while size := (yield from self._chunk_size()):
            body += yield from self._exactly(min(size, limit + 1 - len(body)))
            if len(body) > limit:
                return bytes(body[:limit]), False
            if (yield from self._line()):
                raise Garbled("a chunk has another length than it says")
        self._left = HEAD_LIMIT
        yield from self._fields()
        return bytes(body), True

    def _chunk_size(self) -> Reads[int]:
        self._left = HEAD_LIMIT
        match = _CHUNK_SIZE.fullmatch((yield from self._line()))
        if not match:
            raise Garbled("the length of a chunk is malformed")
        return int(match[1], 16)

    def _line(self) -> Reads[bytes]:
        while (end := self._bytes.find(b"\n", 0, self._left)) < 0:
            if len(self._bytes) >= self._left:
                raise Garbled("its head is too large")
            yield from self._more()
        self._left -= end + 1
        return (yield from self._exactly(end + 1))[:-1].removesuffix(b"\r")

    def _exactly(self, length: int) -> Reads[bytes]:
        while len(self._bytes) < length:
            yield from self._more()
        taken = bytes(self._bytes[:length])
        del self._bytes[:length]
        return taken

    def _more(self) -> Reads[None]:
        if self._ended:
            raise Lost("the framework closed it")
        yield


def _add(headers: dict[str, str], line: bytes) -> None:
    match = _FIELD.fullmatch(line)
    if not match:
        raise Garbled("a header is malformed")
    name, value = match[1].decode("ascii").lower(), match[2].strip(b" \t").decode(errors="surrogateescape")
    if headers.setdefault(name, value) != value and name in _FRAMING:
        raise Garbled("it says two things of its length")


def _closes(headers: dict[str, str]) -> bool:
    return any(option.strip().lower() == "close" for option in headers.get("connection", "").split(","))


def _length(headers: dict[str, str]) -> int:
    """Of the body. Two ways to say it, of which one is used: two opinions on where an answer ends are a fault."""
    length, coding = headers.get("content-length"), headers.get("transfer-encoding")
    if coding is not None:
        if length is not None or coding.lower() != "chunked":
            raise Garbled("of Transfer-Encoding only 'chunked' is read, and without Content-Length")
        return CHUNKED
    if length is None:
        return UNTIL_THE_END
    if not _LENGTH.fullmatch(length):
        raise Garbled("Content-Length is not a number of bytes")
    return int(length)
