"""Waits for an event, but only for a limited time."""

import asyncio


async def is_set_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait until the event is set. Return False if it is not set within this time. None means no limit."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
