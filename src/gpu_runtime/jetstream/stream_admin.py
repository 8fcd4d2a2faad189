"""Creates, updates and inspects streams, consumers and key-value buckets.

`ensure_*` creates an object that does not exist, and updates an object that differs from its spec. Any number of
processes may call it at the same time. If JetStream cannot change a field that differs, `ensure_*` changes nothing and
raises ConfigMismatch with the name of the field.
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
class StreamInfo:
    created_at: str
    """Creation time. It identifies the stream: a stream that was deleted and re-created uses the same sequence numbers
    for other messages."""
    messages_by_subject: dict[str, int]
    """Number of stored messages by subject."""


@dataclass(frozen=True)
class StreamSize:
    used_bytes: int
    message_count: int


async def ensure_with_retry(
    connection: NatsConnection,
    streams: Iterable[StreamSpec] = (),
    buckets: Iterable[BucketSpec] = (),
    consumers: Iterable[ConsumerSpec] = (),
) -> None:
    """Create or update the streams, buckets and consumers. Retry while the server is unavailable.

    Raises ConfigMismatch or a permanent JetStreamApiError. Only an operator can resolve these errors.
    """
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
            logger.warning("stream setup failed; the process will retry", extra={"error": str(error)})
            await asyncio.sleep(_SETUP_BACKOFF.delay(failures))
        else:
            return


async def ensure_stream(connection: NatsConnection, spec: StreamSpec) -> None:
    await _ensure_stream(connection, stream_config(spec), f"stream {spec.name}")


async def ensure_bucket(connection: NatsConnection, spec: BucketSpec) -> None:
    await _ensure_stream(connection, bucket_config(spec), f"bucket {spec.name}")


async def ensure_consumer(connection: NatsConnection, spec: ConsumerSpec) -> None:
    desired, resource = consumer_config(spec), f"consumer {spec.name} of stream {spec.stream}"
    try:
        info = await api_request(connection, f"CONSUMER.INFO.{spec.stream}.{spec.name}")
    except NatsNotFound:
        await _create_consumer(connection, spec, desired, resource)
        return
    if updated := _updated_config(info["config"], desired, resource):
        await _create_consumer(connection, spec, updated, resource)


async def delete_consumer(connection: NatsConnection, spec: ConsumerSpec) -> None:
    """Delete a consumer. Unacknowledged messages stay in the stream. Do nothing if the consumer does not exist."""
    try:
        await api_request(connection, f"CONSUMER.DELETE.{spec.stream}.{spec.name}")
    except NatsNotFound:
        return


async def ack_floor(connection: NatsConnection, spec: ConsumerSpec) -> int:
    """Return the stream sequence up to which the consumer has acknowledged all messages that match its filter."""
    info = await api_request(connection, f"CONSUMER.INFO.{spec.stream}.{spec.name}")
    floor: int = info["ack_floor"]["stream_seq"]
    return floor


async def messages_by_subject(connection: NatsConnection, stream: str, pattern: str) -> dict[str, int]:
    """Return the number of stored messages for each subject that matches the pattern.

    In a work queue stream, this is the backlog.
    """
    return (await stream_info(connection, stream, pattern)).messages_by_subject


async def stream_size(connection: NatsConnection, stream: str) -> StreamSize:
    state = (await api_request(connection, f"STREAM.INFO.{stream}"))["state"]
    return StreamSize(state["bytes"], state["messages"])


async def stream_info(connection: NatsConnection, stream: str, pattern: str) -> StreamInfo:
    """Return the creation time of a stream, and its message counts for the subjects that match the pattern.

    The server returns at most 100,000 subjects in one response, which is more than the number of functions.
    """
    info = await api_request(connection, f"STREAM.INFO.{stream}", {"subjects_filter": pattern})
    return StreamInfo(info["created"], info["state"].get("subjects") or {})


async def _ensure_stream(connection: NatsConnection, desired: Config, resource: str) -> None:
    name = desired["name"]
    try:
        info = await api_request(connection, f"STREAM.INFO.{name}")
    except NatsNotFound:
        info = await _create_stream(connection, desired, resource)
    if updated := _updated_config(info["config"], desired, resource):
        updated |= await _limits_not_lowered(connection, info, desired, resource)
        try:
            await api_request(connection, f"STREAM.UPDATE.{name}", updated)
        except JetStreamApiError as error:
            first = next(config_differences(info["config"], desired))
            raise ConfigMismatch(f"{resource} ({error})", *first) from error
        logger.info("stream configuration updated", extra={"stream": name, "resource": resource})


async def _limits_not_lowered(connection: NatsConnection, info: Config, desired: Config, resource: str) -> Config:
    """Return the limits that must not be lowered yet, with their current values.

    If a limit is lowered below the usage of the stream, JetStream deletes the excess messages. It does so even if the
    discard policy is `new`, although such a stream must never lose a stored message. A later call lowers the limit when
    the usage has fallen below it.
    """
    if desired["discard"] != "new":
        return {}
    counts = await messages_by_subject(connection, desired["name"], ">")
    usage = {"max_msgs_per_subject": max(counts.values(), default=0), "max_bytes": info["state"]["bytes"]}
    unchanged = {field: info["config"][field] for field, used in usage.items() if 0 < desired[field] < used}
    if unchanged:
        logger.warning(
            "stream exceeds the new limits; the process keeps the current limits",
            extra={"stream": desired["name"], "resource": resource, "limits": unchanged},
        )
    return unchanged


async def _create_stream(connection: NatsConnection, desired: Config, resource: str) -> Config:
    try:
        return await api_request(connection, f"STREAM.CREATE.{desired['name']}", desired)
    except JetStreamApiError as error:
        if error.err_code == 10058:  # another process has created the stream meanwhile, with another config
            return await api_request(connection, f"STREAM.INFO.{desired['name']}")
        raise JetStreamApiError(f"cannot create {resource}: {error}", error.code, error.err_code) from error


async def _create_consumer(connection: NatsConnection, spec: ConsumerSpec, config: Config, resource: str) -> None:
    try:
        await api_request(
            connection,
            f"CONSUMER.CREATE.{spec.stream}.{spec.name}" + (f".{spec.filter_subject}" if spec.filter_subject else ""),
            {"stream_name": spec.stream, "config": config},
        )
    except NatsNotFound as error:
        raise NatsNotFound(f"cannot create {resource}: {error}", error.code, error.err_code) from error
    except JetStreamApiError as error:
        raise JetStreamApiError(f"cannot create {resource}: {error}", error.code, error.err_code) from error


def _updated_config(actual: Config, desired: Config, resource: str) -> Config | None:
    """Return the config to send in an update, or None if the actual config already matches.

    Fields that `desired` does not contain keep their actual values.
    """
    differences = list(config_differences(actual, desired))
    for each in differences:
        if each.field in IMMUTABLE_FIELDS:
            raise ConfigMismatch(resource, each.field, each.actual, each.desired)
    return actual | desired if differences else None
