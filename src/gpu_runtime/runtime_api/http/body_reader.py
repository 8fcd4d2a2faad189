"""Reads the body of a request, with a limit on its size and on the time that the client may take."""

import asyncio

from aiohttp import web

from gpu_runtime.contract.errors import TooLarge
from gpu_runtime.runtime_api.http.envelope import SlowRequest

BODY_GRACE_SECONDS = 5.0
"""Time that a client may take for a body, in addition to the time for its bytes."""
MIN_BODY_BYTES_PER_SECOND = 32 * 1024
"""A client that sends a body at this rate or faster can always finish it."""


async def read_body(request: web.BaseRequest, max_bytes: int) -> bytes:
    """Return the whole body. Raises TooLarge if it has more bytes, or SlowRequest if the client sends too slowly."""
    if (request.content_length or 0) > max_bytes:
        raise _too_large(max_bytes)
    loop = asyncio.get_running_loop()
    started, chunks, size = loop.time(), [], 0
    while not request.content.at_eof():
        try:
            async with asyncio.timeout_at(started + allowed_seconds(size)):
                chunks.append(await request.content.readany())
        except TimeoutError:
            raise SlowRequest(
                f"the API received only {size} bytes of the body in time; send the body without pauses"
            ) from None
        size += len(chunks[-1])
        if size > max_bytes:
            raise _too_large(max_bytes)
    return b"".join(chunks)


def allowed_seconds(received_bytes: int) -> float:
    """Return the time from the start of the body until its next bytes must arrive."""
    return BODY_GRACE_SECONDS + received_bytes / MIN_BODY_BYTES_PER_SECOND


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the request body is larger than {limit} bytes; send a smaller one")
