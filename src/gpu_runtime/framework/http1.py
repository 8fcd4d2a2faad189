"""Parses HTTP/1.1 requests and serializes responses. It implements only the part of HTTP that the contract needs.

The parser rejects malformed HTTP and never guesses. It supports one request after another on a connection, but no
upgrades and no compression. It parses trailers and ignores their content.
"""

import asyncio
import re
from dataclasses import dataclass
from http import HTTPStatus

from gpu_runtime.framework.errors import BadRequest
from gpu_runtime.framework.responses import EncodedResponse

_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) (/[!-~]*) HTTP/1\.([0-9])")
_HEADER_LINE = re.compile(
    rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*((?:[!-~\x80-\xff](?:[ \t!-~\x80-\xff]*[!-~\x80-\xff])?)?)[ \t]*"
)
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t -~\x80-\xff]*)?")
_CONTENT_LENGTH = re.compile(r"[0-9]{1,15}")

CHUNKED = -1
READ_SIZE_BYTES = 256 * 1024


@dataclass(frozen=True)
class RequestHead:
    """The request line and the headers of a request."""

    method: str
    target: str
    keep_alive: bool
    headers: dict[str, str]
    """Header values by lower-case name. Several values of one name are joined with commas."""

    body_length: int
    """Length of the body in bytes, or CHUNKED."""

    @property
    def expects_continue(self) -> bool:
        """Whether the caller waits for `100 Continue` before it sends the body."""
        return self.headers.get("expect", "").lower() == "100-continue" and self.body_length != 0


class LineReader:
    """Reads lines. Raises BadRequest when their total size exceeds a limit."""

    def __init__(self, reader: asyncio.StreamReader, limit: int) -> None:
        self._reader = reader
        self._remaining_bytes = limit

    async def read_line(self) -> bytes:
        try:
            line = await self._reader.readuntil(b"\n")
        except asyncio.IncompleteReadError:
            raise BadRequest(400, "the connection closed in the middle of the request") from None
        except asyncio.LimitOverrunError:
            raise BadRequest(431, "the request head is too large") from None
        self._remaining_bytes -= len(line)
        if self._remaining_bytes < 0:
            raise BadRequest(431, "the request head is too large")
        if not line.endswith(b"\r\n"):
            raise BadRequest(400, "a line of the request does not end with CR LF")
        return line[:-2]


async def read_head(reader: asyncio.StreamReader, first_byte: bytes, limit: int) -> RequestHead:
    """Read the head of a request whose first byte the caller of this function has already read."""
    lines = LineReader(reader, limit)
    match = _REQUEST_LINE.fullmatch(first_byte + await lines.read_line())
    if not match:
        raise BadRequest(400, "this is not an HTTP/1.1 request")
    headers: dict[str, str] = {}
    while line := await lines.read_line():
        _add_header(headers, line)
    method, target, minor = (part.decode("ascii") for part in match.groups())
    return RequestHead(
        method, target, _is_keep_alive(headers, minor != "0"), headers, _body_length(headers, minor != "0")
    )


async def read_body(reader: asyncio.StreamReader, length: int, limit: int) -> bytes:
    """Read a body of this length (or CHUNKED). Raise BadRequest 413 if it exceeds the limit."""
    if length == CHUNKED:
        return await _read_chunked(reader, limit)
    if length > limit:
        raise _body_too_large(limit)
    return await _read_exactly(reader, length)


def serialize_response(response: EncodedResponse, keep_alive_seconds: int, with_body: bool = True) -> bytes:
    """Serialize a response and its keep-alive headers.

    With 0 keep-alive seconds, the response says that the server closes the connection. The response to HEAD has the
    Content-Length of the body that the server does not send.
    """
    lines = [f"HTTP/1.1 {response.status} {_reason_phrase(response.status)}"]
    if response.content_type is not None:
        lines.append(f"Content-Type: {response.content_type}")
    if response.status != 204:
        lines.append(f"Content-Length: {len(response.body)}")
    lines += [f"{name}: {value}" for name, value in response.headers]
    lines += (
        ["Connection: keep-alive", f"Keep-Alive: timeout={keep_alive_seconds}"]
        if keep_alive_seconds
        else ["Connection: close"]
    )
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (response.body if with_body else b"")


def _reason_phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


def _add_header(headers: dict[str, str], line: bytes) -> None:
    match = _HEADER_LINE.fullmatch(line)
    if not match:
        raise BadRequest(400, "a header of the request is malformed")
    name, value = match[1].decode("ascii").lower(), match[2].decode("latin-1")
    headers[name] = f"{headers[name]}, {value}" if name in headers else value


def _is_keep_alive(headers: dict[str, str], by_default: bool) -> bool:
    options = {option.strip().lower() for option in headers.get("connection", "").split(",")}
    return "close" not in options and (by_default or "keep-alive" in options)


def _body_length(headers: dict[str, str], may_be_chunked: bool) -> int:
    """Return the length of the body, or CHUNKED.

    A request must not have both Content-Length and Transfer-Encoding. With both, a request could have two different
    ends, which is a bug of the caller or request smuggling.
    """
    length, coding = headers.get("content-length"), headers.get("transfer-encoding")
    if coding is not None:
        if length is not None or coding.lower() != "chunked" or not may_be_chunked:
            raise BadRequest(
                400, "unsupported Transfer-Encoding; use only 'chunked', in HTTP/1.1, without Content-Length"
            )
        return CHUNKED
    if length is None:
        return 0
    if not _CONTENT_LENGTH.fullmatch(length):
        raise BadRequest(400, "Content-Length is not a number of bytes")
    return int(length)


async def _read_exactly(reader: asyncio.StreamReader, length: int) -> bytes:
    parts = []
    while length:
        part = await reader.read(min(length, READ_SIZE_BYTES))
        if not part:
            raise BadRequest(400, "the connection closed before the end of the request body")
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


async def _read_chunked(reader: asyncio.StreamReader, limit: int) -> bytes:
    parts, total = [], 0
    while size := _parse_chunk_size(await LineReader(reader, READ_SIZE_BYTES).read_line()):
        total += size
        if total > limit:
            raise _body_too_large(limit)
        parts.append(await _read_exactly(reader, size))
        if await _read_exactly(reader, 2) != b"\r\n":
            raise BadRequest(400, "the length of a chunk of the request body does not match its size line")
    trailers = LineReader(reader, READ_SIZE_BYTES)
    while line := await trailers.read_line():
        _add_header({}, line)
    return b"".join(parts)


def _parse_chunk_size(line: bytes) -> int:
    match = _CHUNK_SIZE.fullmatch(line)
    if not match:
        raise BadRequest(400, "the size line of a chunk of the request body is malformed")
    return int(match[1], 16)


def _body_too_large(limit: int) -> BadRequest:
    return BadRequest(413, f"the request body is larger than the limit of {limit} bytes")
