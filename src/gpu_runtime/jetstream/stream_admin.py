"""Streams, consumers and buckets as code: made where they are missing, changed where they differ and may be changed.

Any number of processes may do it at the same time. What is there and cannot become what is wanted is left alone, and
Misfit says which field it is.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from gpu_runtime.backoff import Backoff
from gpu_runtime.jetstream.api import api_request
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.errors import ConfigMismatch, JetStreamApiError, JetStreamError, NatsNotFound, is_transient
from gpu_runtime.jetstream.stream_config import (
    IMMUTABLE_FIELDS,
    Config,
    bucket_config,
    config_differences,
    consumer_config,
    stream_config,
)
from gpu_runtime.jetstream.stream_specs import BucketSpec, ConsumerSpec, StreamSpec

logger = logging.getLogger(__name__)

_SETUP_BACKOFF = Backoff(initial_seconds=0.1, max_seconds=5.0)


@dataclass(frozen=True)
class ConsumerInfo:
    """What a consumer has before it."""

    num_pending: int
    """Not delivered yet."""
    num_ack_pending: int
    """Delivered and not acknowledged, those included that wait for their next try."""
    num_waiting: int
    """How many pulls wait for messages."""


@dataclass(frozen=True)
class StreamInfo:
    created_at: str
    """When the stream was made: one that is made anew has the same numbers, for other messages."""
    messages_by_subject: dict[str, int]
    """How many messages."""


async def ensure_with_retry(
    connection: NatsConnection,
    streams: Iterable[StreamSpec] = (),
    buckets: Iterable[BucketSpec] = (),
    consumers: Iterable[ConsumerSpec] = (),
) -> None:
    """Make all of it, waiting for a server that is away. Misfit and Refused end it: those are for the operator."""
    failures = 0
    while True:
        try:
            for stream in streams:
                await ensure_stream(connection, stream)
            for bucket in buckets:
                await ensure_bucket(connection, bucket)
            for consumer in consumers:
                await ensure_consumer(connection, consumer)
        except JetStreamError as error:
            if not is_transient(error):
                raise
            failures += 1
            logger.warning("streams are not made yet", extra={"error": str(error)})
            await asyncio.sleep(_SETUP_BACKOFF.delay(failures))
        else:
            return


async def ensure_stream(connection: NatsConnection, spec: StreamSpec) -> None:
    await _ensure_stream(connection, stream_config(spec), f"stream {spec.name}")


async def ensure_bucket(connection: NatsConnection, spec: BucketSpec) -> None:
    await _ensure_stream(connection, bucket_config(spec), f"bucket {spec.name}")


async def ensure_consumer(connection: NatsConnection, spec: ConsumerSpec) -> None:
    wanted, what = consumer_config(spec), f"consumer {spec.name} of stream {spec.stream}"
    try:
        found = await api_request(connection, f"CONSUMER.INFO.{spec.stream}.{spec.name}")
    except NatsNotFound:
        await _create_consumer(connection, spec, wanted, what)
        return
    if changed := _updated_config(found["config"], wanted, what):
        await _create_consumer(connection, spec, changed, what)


async def delete_consumer(connection: NatsConnection, spec: ConsumerSpec) -> None:
    """Forget a consumer. What it had not acknowledged stays in the stream. One that is gone already is fine."""
    try:
        await api_request(connection, f"CONSUMER.DELETE.{spec.stream}.{spec.name}")
    except NatsNotFound:
        return


async def consumer_info(connection: NatsConnection, spec: ConsumerSpec) -> ConsumerInfo:
    info = await api_request(connection, f"CONSUMER.INFO.{spec.stream}.{spec.name}")
    return ConsumerInfo(info["num_pending"], info["num_ack_pending"], info["num_waiting"])


async def ack_floor(connection: NatsConnection, spec: ConsumerSpec) -> int:
    """The number up to which everything is acknowledged that the consumer was to get."""
    info = await api_request(connection, f"CONSUMER.INFO.{spec.stream}.{spec.name}")
    floor: int = info["ack_floor"]["stream_seq"]
    return floor


async def messages_by_subject(connection: NatsConnection, stream: str, pattern: str) -> dict[str, int]:
    """How many messages a stream holds on each subject of the pattern: in a work queue, what is not yet done."""
    return (await stream_info(connection, stream, pattern)).messages_by_subject


async def stream_info(connection: NatsConnection, stream: str, pattern: str) -> StreamInfo:
    """What a stream holds on the subjects of the pattern.

    The server gives at most 100,000 subjects at a time, more than there are functions.
    """
    info = await api_request(connection, f"STREAM.INFO.{stream}", {"subjects_filter": pattern})
    return StreamInfo(info["created"], info["state"].get("subjects") or {})


async def _ensure_stream(connection: NatsConnection, wanted: Config, what: str) -> None:
    name = wanted["name"]
    try:
        found = await api_request(connection, f"STREAM.INFO.{name}")
    except NatsNotFound:
        found = await _create_stream(connection, wanted, what)
    if changed := _updated_config(found["config"], wanted, what):
        changed |= await _limits_not_lowered(connection, found, wanted, what)
        try:
            await api_request(connection, f"STREAM.UPDATE.{name}", changed)
        except JetStreamApiError as error:
            raise _config_mismatch(found["config"], wanted, what, error) from error
        logger.info("changed", extra={"what": what})


async def _limits_not_lowered(connection: NatsConnection, found: Config, wanted: Config, what: str) -> Config:
    """The limits that stay as they are for now.

    Where a limit is lowered below what the stream holds, JetStream deletes the rest, also from a stream that is to
    refuse and not to forget. There the limit is lowered by whoever comes when less is held.
    """
    if wanted["discard"] != "new":
        return {}
    counts = await messages_by_subject(connection, wanted["name"], ">")
    holds = {"max_msgs_per_subject": max(counts.values(), default=0), "max_bytes": found["state"]["bytes"]}
    kept = {field: found["config"][field] for field, held in holds.items() if 0 < wanted[field] < held}
    if kept:
        logger.warning("limits are not lowered while more is held", extra={"what": what, "limits": kept})
    return kept


async def _create_stream(connection: NatsConnection, wanted: Config, what: str) -> Config:
    try:
        return await api_request(connection, f"STREAM.CREATE.{wanted['name']}", wanted)
    except JetStreamApiError as error:
        if error.err_code == 10058:  # another process was first, with other settings
            return await api_request(connection, f"STREAM.INFO.{wanted['name']}")
        raise JetStreamApiError(f"{what} cannot be made: {error}", error.code, error.err_code) from error


async def _create_consumer(connection: NatsConnection, spec: ConsumerSpec, config: Config, what: str) -> None:
    try:
        await api_request(
            connection,
            f"CONSUMER.CREATE.{spec.stream}.{spec.name}" + (f".{spec.filter_subject}" if spec.filter_subject else ""),
            {"stream_name": spec.stream, "config": config},
        )
    except NatsNotFound as error:
        raise NatsNotFound(f"{what} cannot be made: {error}", error.code, error.err_code) from error
    except JetStreamApiError as error:
        raise JetStreamApiError(f"{what} cannot be made: {error}", error.code, error.err_code) from error


def _updated_config(found: Config, wanted: Config, what: str) -> Config | None:
    """What to write so that the found becomes the wanted; None where it is that already."""
    different = list(config_differences(found, wanted))
    for each in different:
        if each.field in IMMUTABLE_FIELDS:
            raise ConfigMismatch(what, each.field, each.actual, each.desired)
    return found | wanted if different else None


def _config_mismatch(found: Config, wanted: Config, what: str, refused: JetStreamApiError) -> ConfigMismatch:
    first = next(config_differences(found, wanted))
    return ConfigMismatch(f"{what} ({refused})", *first)
