"""Publishes many messages concurrently, and reads the state of a consumer."""

import asyncio
from collections.abc import Iterable
from typing import Any

from gpu_runtime.jetstream.api import api_request
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.jetstream.errors import JetStreamError
from gpu_runtime.jetstream.publisher import PubAck, Publisher
from gpu_runtime.jetstream.stream_specs import ConsumerSpec

MAX_IN_FLIGHT = 256


async def publish_many(publisher: Publisher, messages: Iterable[OutgoingMessage]) -> list[PubAck | JetStreamError]:
    """Publish the messages, and return one outcome per message, in the order of the messages."""
    pending, outcomes = list(messages), list[PubAck | JetStreamError]()
    for start in range(0, len(pending), MAX_IN_FLIGHT):
        batch = pending[start : start + MAX_IN_FLIGHT]
        outcomes += await asyncio.gather(*(_publish_or_error(publisher, message) for message in batch))
    return outcomes


async def consumer_info(connection: NatsConnection, spec: ConsumerSpec) -> dict[str, Any]:
    return await api_request(connection, f"CONSUMER.INFO.{spec.stream}.{spec.name}")


async def _publish_or_error(publisher: Publisher, message: OutgoingMessage) -> PubAck | JetStreamError:
    try:
        return await publisher.publish(message)
    except JetStreamError as error:
        return error
