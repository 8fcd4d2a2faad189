"""HTTP/1.1 as far as the contract needs it: requests in, answers out. What is not plain HTTP is refused, never guessed.

No pipelining beyond one request after another, no upgrades, no compression, no trailers that anybody sees.
"""

import asyncio
import re
from dataclasses import dataclass
from http import HTTPStatus

from gpu_runtime.framework.errors import Unreadable
from gpu_runtime.framework.responses import Answer

_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) (/[!-~]*) HTTP/1\.([0-9])")
_FIELD = re.compile(
    rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*((?:[!-~\x80-\xff](?:[ \t!-~\x80-\xff]*[!-~\x80-\xff])?)?)[ \t]*"
)
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t -~\x80-\xff]*)?")
_LENGTH = re.compile(r"[0-9]{1,15}")

CHUNKED = -1
READ_SIZE = 256 * 1024


@dataclass(frozen=True)
class Head:
    method: str
    target: str
    keep_alive: bool
    headers: dict[str, str]
    """By name in lower case. What came several times is joined with commas."""

    length: int
    """Of the body in bytes, or CHUNKED."""

    @property
    def expects_continue(self) -> bool:
        return self.headers.get("expect", "").lower() == "100-continue" and self.length != 0


class Lines:
    """Lines up to so many bytes altogether."""

    def __init__(self, reader: asyncio.StreamReader, limit: int) -> None:
        self._reader = reader
        self._left = limit

    async def next(self) -> bytes:
        try:
            line = await self._reader.readuntil(b"\n")
        except asyncio.IncompleteReadError:
            raise Unreadable(400, "the request ended in the middle") from None
        except asyncio.LimitOverrunError:
            raise Unreadable(431, "the request's head is too large") from None
        self._left -= len(line)
        if self._left < 0:
            raise Unreadable(431, "the request's head is too large")
        if not line.endswith(b"\r\n"):
            raise Unreadable(400, "a line of the request does not end in CR LF")
        return line[:-2]


async def read_head(reader: asyncio.StreamReader, begun: bytes, limit: int) -> Head:
    """The head of a request of which the first byte has been read already."""
    lines = Lines(reader, limit)
    match = _REQUEST_LINE.fullmatch(begun + await lines.next())
    if not match:
        raise Unreadable(400, "this is not an HTTP/1.1 request")
    headers: dict[str, str] = {}
    while line := await lines.next():
        _add(headers, line)
    method, target, minor = (part.decode("ascii") for part in match.groups())
    return Head(method, target, _keeps_alive(headers, minor != "0"), headers, _length(headers, minor != "0"))


async def read_body(reader: asyncio.StreamReader, length: int, limit: int) -> bytes:
    if length == CHUNKED:
        return await _chunked(reader, limit)
    if length > limit:
        raise _too_large(limit)
    return await _exactly(reader, length)


def written(answer: Answer, kept_seconds: int, with_body: bool = True) -> bytes:
    """The answer as bytes, and for how long the connection is kept. The answer to HEAD has the length of a body that is
    not sent."""
    lines = [f"HTTP/1.1 {answer.status} {_phrase(answer.status)}"]
    if answer.content_type is not None:
        lines.append(f"Content-Type: {answer.content_type}")
    if answer.status != 204:
        lines.append(f"Content-Length: {len(answer.body)}")
    lines += [f"{name}: {value}" for name, value in answer.headers]
    lines += (
        ["Connection: keep-alive", f"Keep-Alive: timeout={kept_seconds}"] if kept_seconds else ["Connection: close"]
    )
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (answer.body if with_body else b"")


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


def _add(headers: dict[str, str], line: bytes) -> None:
    match = _FIELD.fullmatch(line)
    if not match:
        raise Unreadable(400, "a header of the request is malformed")
    name, value = match[1].decode("ascii").lower(), match[2].decode("latin-1")
    headers[name] = f"{headers[name]}, {value}" if name in headers else value


def _keeps_alive(headers: dict[str, str], by_default: bool) -> bool:
    options = {option.strip().lower() for option in headers.get("connection", "").split(",")}
    return "close" not in options and (by_default or "keep-alive" in options)


def _length(headers: dict[str, str], may_be_chunked: bool) -> int:
    """One of the two ways to say it, said once: two opinions on where a request ends are an attack or a fault."""
    length, coding = headers.get("content-length"), headers.get("transfer-encoding")
    if coding is not None:
        if length is not None or coding.lower() != "chunked" or not may_be_chunked:
            raise Unreadable(400, "of Transfer-Encoding only 'chunked' is read, in HTTP/1.1, without Content-Length")
        return CHUNKED
    if length is None:
        return 0
    if not _LENGTH.fullmatch(length):
        raise Unreadable(400, "Content-Length is not a number of bytes")
    return int(length)


async def _exactly(reader: asyncio.StreamReader, length: int) -> bytes:
    parts = []
    while length:
        part = await reader.read(min(length, READ_SIZE))
        if not part:
            raise Unreadable(400, "the request's body ended early")
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


async def _chunked(reader: asyncio.StreamReader, limit: int) -> bytes:
    parts, total = [], 0
    while size := _chunk_size(await Lines(reader, READ_SIZE).next()):
        total += size
        if total > limit:
            raise _too_large(limit)
        parts.append(await _exactly(reader, size))
        if await _exactly(reader, 2) != b"\r\n":
            raise Unreadable(400, "a chunk of the request's body has another length than it says")
    trailers = Lines(reader, READ_SIZE)
    while line := await trailers.next():
        _add({}, line)
    return b"".join(parts)


def _chunk_size(line: bytes) -> int:
    match = _CHUNK_SIZE.fullmatch(line)
    if not match:
        raise Unreadable(400, "the length of a chunk of the request's body is malformed")
    return int(match[1], 16)


def _too_large(limit: int) -> Unreadable:
    return Unreadable(413, f"the request's body is larger than the limit of {limit} bytes")
