"""Which events a worker publishes, and which of several pending events it publishes."""

from typing import Any

from gpu_runtime.contract.messages.message_codec import decode
from gpu_runtime.contract.messages.worker_event import WorkerEvent, WorkerEventKind
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.connection_options import ConnectionOptions
from gpu_runtime.process.shared_settings import NatsSettings, StreamSettings
from gpu_runtime.worker_sidecar.heartbeat import HeartbeatPublisher
from gpu_runtime.worker_sidecar.settings import WorkerSidecarSettings

REGISTERED, HEARTBEAT, DRAINING = WorkerEventKind.REGISTERED, WorkerEventKind.HEARTBEAT, WorkerEventKind.DRAINING
STARTED, FINISHED = WorkerEventKind.STARTED, WorkerEventKind.FINISHED


def heartbeat(in_flight: int = 0) -> HeartbeatPublisher:
    settings = WorkerSidecarSettings(
        function_id="id-1", request_id="fn-1", worker="worker-1", namespace="runtime-instance"
    )
    connection = NatsConnection(ConnectionOptions(("nats://127.0.0.1:1",)))
    return HeartbeatPublisher(connection, settings, "pod-1", lambda: in_flight)


async def test_no_event_before_registration_and_registration_is_first() -> None:
    worker = heartbeat()
    assert worker.next_events() == ()
    worker.mark_registered()
    worker.invocation_started("a")
    assert worker.next_events() == ((REGISTERED, ""), (STARTED, "a"))
    assert worker.next_events() == ((HEARTBEAT, ""),)


async def test_several_events_between_heartbeats_report_a_start() -> None:
    worker = heartbeat()
    for invocation_id in ("a", "b"):
        worker.invocation_started(invocation_id)
        worker.invocation_finished(invocation_id)
    assert worker.next_events() == ((STARTED, "b"),)
    worker.invocation_finished("b")
    assert worker.next_events() == ((FINISHED, "b"),)


async def test_worker_with_unhealthy_framework_sends_heartbeats_only_while_busy() -> None:
    for in_flight, events in ((0, ()), (1, ((HEARTBEAT, ""),))):
        worker = heartbeat(in_flight)
        worker.mark_registered()
        worker.next_events()
        worker.mark_unhealthy()
        assert worker.next_events() == events


async def test_draining_worker_sends_only_draining_events() -> None:
    worker = heartbeat()
    worker.mark_draining()
    worker.mark_registered()
    worker.invocation_started("a")
    assert worker.next_events() == ((DRAINING, ""),)
    assert worker.next_events() == ((DRAINING, ""),)


class RecordingConnection:
    def __init__(self) -> None:
        self.published: list[WorkerEvent] = []

    async def publish(self, _subject: str, data: bytes, **_options: Any) -> None:
        self.published.append(decode(data, WorkerEvent))


async def test_event_has_the_heartbeat_interval_of_the_settings() -> None:
    streams = StreamSettings(dispatch_ack_wait_seconds=60)
    settings = WorkerSidecarSettings(
        function_id="id-1",
        request_id="fn-1",
        worker="worker-1",
        namespace="runtime-instance",
        heartbeat_seconds=20,
        nats=NatsSettings(streams=streams),
    )
    connection: Any = RecordingConnection()
    worker = HeartbeatPublisher(connection, settings, "pod-1", lambda: 0)
    worker.mark_registered()
    await worker._publish()
    assert [each.heartbeat_seconds for each in connection.published] == [20]
