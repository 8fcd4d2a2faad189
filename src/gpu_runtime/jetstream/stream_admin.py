"""Streams, consumers and buckets as code: made where they are missing, changed where they differ and may be changed.

Any number of processes may do it at the same time. What is there and cannot become what is wanted is left alone, and
Misfit says which field it is.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from gpu_runtime.backoff import Backoff
from gpu_runtime.jetstream.api import call
from gpu_runtime.jetstream.connection import Connection
from gpu_runtime.jetstream.errors import Misfit, NotFound, Refused, StreamError, is_passing
from gpu_runtime.jetstream.stream_config import (
    FIXED,
    Config,
    bucket_config,
    consumer_config,
    differences,
    stream_config,
)
from gpu_runtime.jetstream.stream_specs import BucketSpec, ConsumerSpec, StreamSpec

logger = logging.getLogger(__name__)

_PAUSES = Backoff(first=0.1, longest=5.0)


@dataclass(frozen=True)
class Load:
    """What a consumer has before it."""

    waiting: int
    """Not delivered yet."""
    in_flight: int
    """Delivered and not acknowledged, those included that wait for their next try."""
    pulls: int
    """How many pulls wait for messages."""


@dataclass(frozen=True)
class Holdings:
    made_at: str
    """When the stream was made: one that is made anew has the same numbers, for other messages."""
    by_subject: dict[str, int]
    """How many messages."""


async def ensure_until_done(
    connection: Connection,
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
        except StreamError as error:
            if not is_passing(error):
                raise
            failures += 1
            logger.warning("streams are not made yet", extra={"error": str(error)})
            await asyncio.sleep(_PAUSES.delay(failures))
        else:
            return


async def ensure_stream(connection: Connection, spec: StreamSpec) -> None:
    await _ensure_stream(connection, stream_config(spec), f"stream {spec.name}")


async def ensure_bucket(connection: Connection, spec: BucketSpec) -> None:
    await _ensure_stream(connection, bucket_config(spec), f"bucket {spec.name}")


async def ensure_consumer(connection: Connection, spec: ConsumerSpec) -> None:
    wanted, what = consumer_config(spec), f"consumer {spec.name} of stream {spec.stream}"
    try:
        found = await call(connection, f"CONSUMER.INFO.{spec.stream}.{spec.name}")
    except NotFound:
        await _written(connection, spec, wanted, what)
        return
    if changed := _changed(found["config"], wanted, what):
        await _written(connection, spec, changed, what)


async def delete_consumer(connection: Connection, spec: ConsumerSpec) -> None:
    """Forget a consumer. What it had not acknowledged stays in the stream. One that is gone already is fine."""
    try:
        await call(connection, f"CONSUMER.DELETE.{spec.stream}.{spec.name}")
    except NotFound:
        return


async def consumer_load(connection: Connection, spec: ConsumerSpec) -> Load:
    info = await call(connection, f"CONSUMER.INFO.{spec.stream}.{spec.name}")
    return Load(info["num_pending"], info["num_ack_pending"], info["num_waiting"])


async def acknowledged_up_to(connection: Connection, spec: ConsumerSpec) -> int:
    """The number up to which everything is acknowledged that the consumer was to get."""
    info = await call(connection, f"CONSUMER.INFO.{spec.stream}.{spec.name}")
    floor: int = info["ack_floor"]["stream_seq"]
    return floor


async def messages_by_subject(connection: Connection, stream: str, pattern: str) -> dict[str, int]:
    """How many messages a stream holds on each subject of the pattern: in a work queue, what is not yet done."""
    return (await holdings(connection, stream, pattern)).by_subject


async def holdings(connection: Connection, stream: str, pattern: str) -> Holdings:
    """What a stream holds on the subjects of the pattern.

    The server gives at most 100,000 subjects at a time, more than there are functions.
    """
    info = await call(connection, f"STREAM.INFO.{stream}", {"subjects_filter": pattern})
    return Holdings(info["created"], info["state"].get("subjects") or {})


async def _ensure_stream(connection: Connection, wanted: Config, what: str) -> None:
    name = wanted["name"]
    try:
        found = await call(connection, f"STREAM.INFO.{name}")
    except NotFound:
        found = await _created(connection, wanted, what)
    if changed := _changed(found["config"], wanted, what):
        changed |= await _kept(connection, found, wanted, what)
        try:
            await call(connection, f"STREAM.UPDATE.{name}", changed)
        except Refused as error:
            raise _unfit(found["config"], wanted, what, error) from error
        logger.info("changed", extra={"what": what})


async def _kept(connection: Connection, found: Config, wanted: Config, what: str) -> Config:
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


async def _created(connection: Connection, wanted: Config, what: str) -> Config:
    try:
        return await call(connection, f"STREAM.CREATE.{wanted['name']}", wanted)
    except Refused as error:
        if error.kind == 10058:  # another process was first, with other settings
            return await call(connection, f"STREAM.INFO.{wanted['name']}")
        raise Refused(f"{what} cannot be made: {error}", error.code, error.kind) from error


async def _written(connection: Connection, spec: ConsumerSpec, config: Config, what: str) -> None:
    try:
        await call(
            connection,
            f"CONSUMER.CREATE.{spec.stream}.{spec.name}" + (f".{spec.filter_subject}" if spec.filter_subject else ""),
            {"stream_name": spec.stream, "config": config},
        )
    except NotFound as error:
        raise NotFound(f"{what} cannot be made: {error}", error.code, error.kind) from error
    except Refused as error:
        raise Refused(f"{what} cannot be made: {error}", error.code, error.kind) from error


def _changed(found: Config, wanted: Config, what: str) -> Config | None:
    """What to write so that the found becomes the wanted; None where it is that already."""
    different = list(differences(found, wanted))
    for each in different:
        if each.field in FIXED:
            raise Misfit(what, each.field, each.found, each.wanted)
    return found | wanted if different else None


def _unfit(found: Config, wanted: Config, what: str, refused: Refused) -> Misfit:
    first = next(differences(found, wanted))
    return Misfit(f"{what} ({refused})", *first)
