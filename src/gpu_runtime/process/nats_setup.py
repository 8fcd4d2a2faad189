"""What a process makes of its NATS settings, and of what goes wrong there."""

from gpu_runtime.contract.errors import Conflict, Overloaded, Rejected, RuntimeFault, TooLarge, Unavailable
from gpu_runtime.contract.messages.streams import Keeping, Topology
from gpu_runtime.contract.messages.subjects import Subjects
from gpu_runtime.jetstream import errors
from gpu_runtime.jetstream.connection_options import Options, Tls
from gpu_runtime.process.shared_settings import Nats, NatsTLS, Streams


def options_of(settings: Nats, process: str) -> Options:
    return Options(
        urls=settings.urls,
        name=process,
        credentials_file=settings.credentials_file,
        user=settings.user,
        password_file=settings.password_file,
        token_file=settings.token_file,
        tls=_tls(settings.tls),
        request_timeout=settings.request_timeout_seconds,
    )


def topology_of(settings: Nats) -> Topology:
    return Topology(Subjects(settings.prefix), _keeping(settings.streams))


def fault_of(error: errors.StreamError) -> RuntimeFault:
    """The fault for a caller. What nobody answered may have been carried out: the same request may be repeated."""
    match error:
        case errors.Full():
            return Overloaded(f"too much is waiting already: {error}", retry_after=5)
        case errors.TooLarge():
            return TooLarge(str(error))
        case errors.Outrun():
            return Conflict(str(error))
        case errors.Misfit() | errors.Misconfigured():
            return Rejected(str(error))
    return Unavailable(f"NATS: {error}", retry_after=1)


def _tls(settings: NatsTLS) -> Tls | None:
    if settings == NatsTLS():
        return None
    return Tls(settings.ca_file, settings.cert_file, settings.key_file, settings.server_name)


def _keeping(settings: Streams) -> Keeping:
    return Keeping(
        replicas=settings.replicas,
        storage=settings.storage,
        queued_per_function=settings.queued_per_function,
        queue_bytes=settings.queue_bytes,
        dead_letter_seconds=settings.dead_letter_retention_seconds,
        dead_letter_bytes=settings.dead_letter_bytes,
        state_seconds=settings.state_retention_seconds,
        invoke_ack_wait=settings.invoke_ack_wait_seconds,
        dispatch_ack_wait=settings.dispatch_ack_wait_seconds,
        result_ack_wait=settings.result_ack_wait_seconds,
        idle_consumer_seconds=settings.idle_consumer_seconds,
    )
