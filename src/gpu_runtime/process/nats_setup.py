"""Converts the NATS settings to connection options and stream limits, and NATS errors to faults for callers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gpu_runtime.contract.errors import Overloaded, Rejected, RuntimeFault, TooLarge, Unavailable, WriteConflict
from gpu_runtime.contract.messages.streams import StreamLimits, StreamTopology
from gpu_runtime.contract.messages.subjects import Subjects
from gpu_runtime.jetstream import errors
from gpu_runtime.jetstream.connection import NatsConnection, connect_nats
from gpu_runtime.jetstream.connection_options import ConnectionOptions, TlsOptions
from gpu_runtime.process.shared_settings import NatsSettings, NatsTLSSettings, StreamSettings


def nats_options(settings: NatsSettings, process: str) -> ConnectionOptions:
    return ConnectionOptions(
        urls=settings.urls,
        name=process,
        credentials_file=settings.credentials_file,
        user=settings.user,
        password_file=settings.password_file,
        token_file=settings.token_file,
        tls=_tls_options(settings.tls),
        request_timeout=settings.request_timeout_seconds,
    )


@asynccontextmanager
async def connect_nats_or_fault(options: ConnectionOptions) -> AsyncIterator[NatsConnection]:
    """Yield a connection. A NATS error that leaves the block becomes a fault.

    Such an error is permanent: the settings are wrong, or they differ from the existing streams.
    """
    try:
        async with connect_nats(options) as connection:
            yield connection
    except errors.JetStreamError as error:
        raise fault_from_nats_error(error) from error


def stream_topology(settings: NatsSettings) -> StreamTopology:
    return StreamTopology(Subjects(settings.prefix), _stream_limits(settings.streams))


def fault_from_nats_error(error: errors.JetStreamError) -> RuntimeFault:
    """Return the fault that a caller gets for a NATS error.

    If NATS did not respond, it may have executed the request. In this case the fault is Unavailable, and the caller can
    repeat the same request.
    """
    match error:
        case errors.StreamFull():
            return Overloaded(f"too many messages are waiting: {error}", retry_after=5)

        case errors.NatsMessageTooLarge():
            return TooLarge(str(error))
        case errors.WrongLastSequence():
            return WriteConflict(str(error))
        case errors.ConfigMismatch() | errors.NatsMisconfigured():
            return Rejected(str(error))
    return Unavailable(f"NATS: {error}", retry_after=1)


def _tls_options(settings: NatsTLSSettings) -> TlsOptions | None:
    if settings == NatsTLSSettings():
        return None
    return TlsOptions(settings.ca_file, settings.cert_file, settings.key_file, settings.server_name)


def _stream_limits(settings: StreamSettings) -> StreamLimits:
    return StreamLimits(
        replicas=settings.replicas,
        storage=settings.storage,
        max_messages_per_subject=settings.max_messages_per_subject,
        max_bytes=settings.max_stream_bytes,
        dead_letter_retention_seconds=settings.dead_letter_retention_seconds,
        dead_letter_max_bytes=settings.max_dead_letter_bytes,
        max_dead_letters_per_subject=settings.max_dead_letters_per_function,
        record_ttl_seconds=settings.record_retention_seconds,
        record_max_bytes=settings.max_record_bytes,
        invoke_ack_wait_seconds=settings.invoke_ack_wait_seconds,
        dispatch_ack_wait_seconds=settings.dispatch_ack_wait_seconds,
        result_ack_wait_seconds=settings.result_ack_wait_seconds,
        consumer_inactive_threshold_seconds=settings.consumer_inactive_threshold_seconds,
    )
