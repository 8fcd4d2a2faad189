"""Test harness around an activator: callers, a result store and fake sidecars, on real NATS and a real API server."""

import asyncio
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import aiohttp
import msgspec
import yaml
from lightkube import ApiError, AsyncClient
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.types import PatchType

from gpu_runtime.activator.main import Activator, new_activator
from gpu_runtime.activator.settings import (
    ActivatorSettings,
    DispatchSettings,
    ReaperSettings,
    RuntimeAPIClientSettings,
    ScalingSettings,
)
from gpu_runtime.contract.crd.well_known import SYSTEM_NAMESPACE, function_queue_name
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.drain_request import DrainRequest, DrainStatus
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_messages import new_record
from gpu_runtime.contract.messages.invocation_record import (
    REVISION_HEADER,
    InvocationRecord,
    RecordAtRevision,
    RecordState,
    Termination,
    record_headers,
)
from gpu_runtime.contract.messages.invocation_ticket import TICKET_HEADER, ticket_headers
from gpu_runtime.contract.messages.message_codec import decode, encode, to_utc_milliseconds
from gpu_runtime.contract.messages.result import Result, ResultState, Timings
from gpu_runtime.contract.messages.streams import StreamTopology
from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.contract.messages.worker_event import WorkerEvent, WorkerEventKind
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.delivery import AckDelivery, DeadLetterDelivery, Delivery, DeliveryOutcome, OutgoingMessage
from gpu_runtime.jetstream.errors import JetStreamError
from gpu_runtime.jetstream.kv import KeyValueBucket
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.pull_consumer import ConsumeOptions, PullConsumer
from gpu_runtime.jetstream.request_reply import serve_requests
from gpu_runtime.jetstream.stream_admin import messages_by_subject
from gpu_runtime.kube.client import open_kube_client
from gpu_runtime.kube.config import load_cluster_config
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.process.shared_settings import LeaderElectionSettings, NatsSettings, StreamSettings
from localcluster.control_plane import ControlPlane
from tests.integration.controller_manager.conftest import (
    GPU_RUNTIME_PROGRAM,
    QUEUE,
    UNIT,
    ControllerManagerProcess,
    Object,
    as_dict,
)
from tests.ticket_keys import TICKET_SECTION, TICKET_SETTINGS, TICKETS

UNIT_NAMESPACE, STOCK_NAMESPACE = "runtime-instance", "runtime-stock"
ACTIVATOR_USER = "system:serviceaccount:runtime-system:activator"
NO_LEADER_ELECTION = LeaderElectionSettings(enabled=False)


def nats_settings(url: str) -> NatsSettings:
    """NATS settings with small streams, because every test has its own streams."""
    return NatsSettings(
        urls=(url,), streams=StreamSettings(max_stream_bytes=8 * 1024**2, max_dead_letter_bytes=1024**2)
    )


def now() -> datetime:
    return to_utc_milliseconds(datetime.now(UTC))


async def until(condition: Callable[[], Awaitable[bool]], description: str, seconds: float = 60) -> float:
    """Wait until the condition holds. Return the seconds that it took."""
    start = time.monotonic()
    while not await condition():
        assert time.monotonic() - start < seconds, f"condition not met within {seconds:g} s: {description}"
        await asyncio.sleep(0.02)
    return time.monotonic() - start


def terminated(activator: Activator) -> dict[tuple[str, str, str], float]:
    """Return the counter of terminated invocations by state, failure class and stage."""
    (family,) = activator.leader.metrics.terminated.collect()
    return {
        (each.labels["state"], each.labels["failure_class"], each.labels["stage"]): each.value
        for each in family.samples
        if each.name.endswith("_total")
    }


def invocation_ticket_headers(invocation: Invocation) -> dict[str, str]:
    """Return the header with the ticket that the runtime API signs for this invocation."""
    return ticket_headers(TICKETS.sign_record(invocation.invocation_id, accepted_record(invocation)))


def accepted_record(invocation: Invocation) -> InvocationRecord:
    """Return the record that the runtime API creates for this invocation."""
    enqueued_at = invocation.enqueued_at or now()
    return new_record(invocation, enqueued_at, to_utc_milliseconds(invocation.deadline or enqueued_at))


@dataclass
class ActivatorHarness:
    control_plane: ControlPlane
    kube: AsyncClient
    nats: NatsConnection
    topology: StreamTopology
    nats_url: str
    api_url: str
    results: dict[str, Result] = field(default_factory=dict)
    """The first result of each invocation, which is final."""
    duplicate_results: list[Result] = field(default_factory=list)

    @property
    def publisher(self) -> Publisher:
        return Publisher(self.nats)

    @property
    def records(self) -> KeyValueBucket:
        return KeyValueBucket(self.nats, self.publisher, self.topology.record_bucket)

    def settings(self, **changes: Any) -> ActivatorSettings:
        defaults = ActivatorSettings(
            nats=nats_settings(self.nats_url),
            tickets=TICKET_SETTINGS,
            runtime_api=RuntimeAPIClientSettings(url=self.api_url),
            leader_election=NO_LEADER_ELECTION,
            dispatching=DispatchSettings(unknown_function_grace_seconds=0.3),
            scaling=ScalingSettings(poll_interval_seconds=0.2, drain_request_timeout_seconds=1),
            reaping=ReaperSettings(
                poll_interval_seconds=0.2, deadline_grace_seconds=0.3, deleted_function_grace_seconds=0.5
            ),
        )
        return msgspec.structs.replace(defaults, **changes)

    @asynccontextmanager
    async def activator(self, connection: NatsConnection | None = None, **changes: Any) -> AsyncIterator[Activator]:
        """Run an activator for the duration of the block, with the permissions of the RBAC manifests."""
        config = load_cluster_config(self.control_plane.kubeconfig_for("activator", ACTIVATOR_USER))
        stopping, metrics = asyncio.Event(), KubeMetrics()
        async with open_kube_client(config, field_manager="activator") as client, aiohttp.ClientSession() as http:
            activator = new_activator(client, connection or self.nats, http, self.settings(**changes), metrics)
            running = asyncio.create_task(activator.run(stopping))
            try:
                await activator.functions.wait_for_sync()
                yield activator
            finally:
                stopping.set()
                await running

    async def accept_invocation(
        self, request_id: str, *, seconds: float = 600, body: bytes = b"{}", **fields: Any
    ) -> Invocation:
        """Accept an invocation like the runtime API: create the record, then publish the message with its headers."""
        invocation = Invocation(
            invocation_id=fields.pop("id", "") or f"inv-{uuid.uuid4().hex}",
            serverless_request_id=request_id,
            function_id=self.function_id(request_id),
            body=body,
            enqueued_at=now(),
            timeout_seconds=seconds,
            **fields,
        )
        record = accepted_record(invocation)
        revision = await self.records.create(invocation.invocation_id, encode(record))
        await self.publish_invocation(invocation, RecordAtRevision(record, revision) if revision else None)
        return invocation

    async def publish_invocation(self, invocation: Invocation, record: RecordAtRevision | None) -> None:
        headers = record_headers(record) | invocation_ticket_headers(invocation)
        subject = self.topology.subjects.invoke(invocation.function_id)
        await self.publisher.publish(OutgoingMessage(subject, encode(invocation), headers=headers))

    async def cancel_invocation(self, invocation: Invocation) -> None:
        """Cancel an invocation like a runtime API that crashes after the hint, before it publishes the result."""
        entry = await self.records.get(invocation.invocation_id)
        assert entry
        record = msgspec.structs.replace(decode(entry.value, InvocationRecord), termination=Termination.CANCELLED)
        assert await self.records.update(invocation.invocation_id, encode(record), entry.revision)
        subject = self.topology.subjects.cancel(invocation.function_id)
        await self.nats.publish(subject, invocation.invocation_id.encode())

    async def record(self, invocation_id: str) -> InvocationRecord:
        entry = await self.records.get(invocation_id)
        assert entry
        return decode(entry.value, InvocationRecord)

    async def wait_result(self, invocation: Invocation, seconds: float = 60) -> Result:
        async def has_result() -> bool:
            return invocation.invocation_id in self.results

        await until(has_result, f"invocation {invocation.invocation_id} has a result", seconds)
        return self.results[invocation.invocation_id]

    async def backlog(self, request_id: str, stream: Stream = Stream.DISPATCH) -> int:
        subject = self.topology.subjects.stream_subject(stream, self.function_id(request_id))
        return sum((await messages_by_subject(self.nats, self.topology.stream_name(stream), subject)).values())

    @asynccontextmanager
    async def running_result_store(self) -> AsyncIterator[None]:
        """Consume results like the result store and keep the first of each invocation. Records are not updated."""
        stopping = asyncio.Event()

        async def store(delivery: Delivery) -> DeliveryOutcome:
            result = decode(delivery.data, Result)
            if result.invocation_id in self.results:
                self.duplicate_results.append(result)
            self.results.setdefault(result.invocation_id, result)
            return AckDelivery()

        consumer = PullConsumer(self.nats, self.topology.result_consumer, store, _no_dead_letter, ConsumeOptions())
        running = asyncio.create_task(consumer.run(stopping))
        try:
            yield
        finally:
            stopping.set()
            await running

    async def create_function(
        self, name: str, *, flavor: str = "", spec: Object | None = None, **serverless: Any
    ) -> Object:
        """Create a function whose own unit is stopped, so that the activator creates every worker."""
        function_spec = {
            "specName": flavor or name,
            "image": "python:3.12",
            "memory": "1Gi",
            "gpu": 1,
            "running": False,
            "serverless": {"enabled": True, "requestID": name, "idleTimeoutSeconds": 1, **serverless},
        }
        function = await self.create_unit(UNIT_NAMESPACE, name, function_spec | (spec or {}))
        await self.create_queue(function)
        return function

    async def create_queue(self, function: Object) -> None:
        """Create the FunctionQueue of a function, like the controller manager."""
        metadata, request_id = function["metadata"], function["spec"]["serverless"]["requestID"]
        owner = {"namespace": metadata["namespace"], "name": metadata["name"], "uid": metadata["uid"]}
        spec = {"functionID": self.function_id(request_id), "requestID": request_id, "function": owner}
        name = function_queue_name(request_id)
        try:
            await self.kube.create(QUEUE(metadata=ObjectMeta(name=name, namespace=SYSTEM_NAMESPACE), spec=spec))
        except ApiError:  # of an earlier function with this requestID, or of a controller manager
            await self.kube.patch(QUEUE, name, {"spec": spec}, namespace=SYSTEM_NAMESPACE, patch_type=PatchType.MERGE)

    def function_id(self, request_id: str) -> str:
        return f"id-of-{request_id}".lower()

    async def create_unit(self, namespace: str, name: str, spec: Object) -> Object:
        metadata = ObjectMeta(name=name, namespace=namespace)
        return as_dict(await self.kube.create(UNIT(metadata=metadata, spec=spec)))

    async def create_stock(self, flavor: str, count: int) -> None:
        """Create stock units and set their phase to Ready, like the controller manager."""
        for number in range(count):
            name = f"stock-{flavor}-{number}"
            await self.create_unit(STOCK_NAMESPACE, name, {"specName": flavor, "memory": "2Gi", "gpu": 1})
            await self.mark_stock_ready(name)

    async def mark_stock_ready(self, stock: str) -> None:
        status = {"status": {"phase": "Ready"}}
        await self.kube.patch(UNIT.Status, stock, status, namespace=STOCK_NAMESPACE, patch_type=PatchType.MERGE)

    async def list_units(self, namespace: str, flavor: str) -> list[Object]:
        units = [as_dict(each) async for each in self.kube.list(UNIT, namespace=namespace)]
        return [each for each in units if each["spec"]["specName"] == flavor]

    async def list_workers(self, function: str) -> list[Object]:
        units = [as_dict(each) async for each in self.kube.list(UNIT, namespace=UNIT_NAMESPACE)]
        return [each for each in units if each["spec"].get("serverless", {}).get("workerOf") == function]

    async def patch_unit(self, name: str, patch: Object, namespace: str = UNIT_NAMESPACE) -> None:
        await self.kube.patch(UNIT, name, patch, namespace=namespace, patch_type=PatchType.MERGE)

    async def delete_unit(self, name: str, namespace: str = UNIT_NAMESPACE) -> None:
        try:
            await self.kube.delete(UNIT, name, namespace=namespace)
        except ApiError as error:
            if error.status.code != 404:
                raise

    async def delete_all_units(self) -> None:
        for namespace in (UNIT_NAMESPACE, STOCK_NAMESPACE):
            async for each in self.kube.list(UNIT, namespace=namespace):
                assert each.metadata
                await self.delete_unit(str(each.metadata.name), namespace)
        async for each in self.kube.list(QUEUE, namespace=SYSTEM_NAMESPACE):
            assert each.metadata
            await self.kube.delete(QUEUE, str(each.metadata.name), namespace=SYSTEM_NAMESPACE)


class ActivatorProcess(ControllerManagerProcess):
    """An activator in its own process, which a test can kill."""

    def start(self) -> "ActivatorProcess":
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "settings.yaml"
        settings = {
            "log": {"level": "debug", "format": "text"},
            "health": {"bindAddress": f"127.0.0.1:{self.port}"},
            "kubernetes": {"kubeconfig": str(self.kubeconfig)},
            **TICKET_SECTION,
        }
        config.write_text(yaml.safe_dump(settings | self.settings))
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", GPU_RUNTIME_PROGRAM, "activator", "--config", config],
                stderr=log,
            )
        return self


@dataclass
class FakeSidecar:
    """A fake worker sidecar: it publishes events, pulls invocations and answers drain requests."""

    harness: ActivatorHarness
    request_id: str
    unit: str
    concurrency: int = 1
    may_finish: asyncio.Event = field(default_factory=asyncio.Event)
    """Running invocations finish only while this event is set."""
    pod_uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    in_flight_ids: list[str] = field(default_factory=list)
    finished_ids: list[str] = field(default_factory=list)
    draining: bool = False
    started_at: float = field(default_factory=time.monotonic)
    _sequence: int = 0
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def in_flight(self) -> int:
        return len(self.in_flight_ids)

    @property
    def function_id(self) -> str:
        return self.harness.function_id(self.request_id)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["FakeSidecar"]:
        topology, harness = self.harness.topology, self.harness
        options = ConsumeOptions(max_in_flight=self.concurrency)
        consumer = PullConsumer(
            harness.nats, topology.dispatch_consumer(self.function_id), self._handle, _no_dead_letter, options
        )
        async with serve_requests(harness.nats, topology.subjects.control(self.pod_uid), self._answer_drain):
            await self.record_pod()
            await self.publish_event(WorkerEventKind.REGISTERED)
            tasks = [asyncio.create_task(consumer.run(self._stopping)), asyncio.create_task(self._send_heartbeats())]
            try:
                yield self
            finally:
                self.may_finish.set()
                self._stopping.set()
                await asyncio.wait(tasks)

    async def record_pod(self) -> None:
        """Write the pod into the status of the unit, as the controller manager does, if the unit exists."""
        patch = {"status": {"podUID": self.pod_uid}}
        with suppress(ApiError):
            await self.harness.kube.patch(
                UNIT.Status, self.unit, patch, namespace=UNIT_NAMESPACE, patch_type=PatchType.MERGE
            )

    async def publish_event(self, kind: WorkerEventKind) -> None:
        self._sequence += 1
        event = WorkerEvent(
            kind=kind,
            function_id=self.function_id,
            unit=self.unit,
            namespace=UNIT_NAMESPACE,
            pod_uid=self.pod_uid,
            sequence=self._sequence,
            in_flight=self.in_flight,
            concurrency=self.concurrency,
        )
        await self.harness.nats.publish(
            self.harness.topology.subjects.events(self.function_id, self.pod_uid), encode(event)
        )

    async def _send_heartbeats(self) -> None:
        while not self._stopping.is_set():
            with suppress(JetStreamError):
                await self.publish_event(WorkerEventKind.HEARTBEAT)
            await asyncio.sleep(0.1)

    async def _handle(self, delivery: Delivery) -> DeliveryOutcome:
        dispatch = decode(delivery.data, Dispatch)
        id_ = dispatch.invocation.invocation_id
        self.in_flight_ids.append(id_)
        await self._mark_running(id_, int(delivery.headers[REVISION_HEADER]))
        await self.publish_event(WorkerEventKind.STARTED)
        await self.may_finish.wait()
        result = Result(
            invocation_id=id_,
            serverless_request_id=self.request_id,
            function_id=self.function_id,
            state=ResultState.SUCCEEDED,
            timings=Timings(finished_at=now()),
            worker=self.unit,
        )
        headers = ticket_headers(delivery.headers[TICKET_HEADER])
        subject = self.harness.topology.subjects.result(self.function_id)
        await self.harness.publisher.publish(OutgoingMessage(subject, encode(result), id_, headers))
        self.in_flight_ids.remove(id_)
        self.finished_ids.append(id_)
        await self.publish_event(WorkerEventKind.FINISHED)
        return AckDelivery()

    async def _mark_running(self, id_: str, revision: int) -> None:
        record = msgspec.structs.replace(
            await self.harness.record(id_), state=RecordState.RUNNING, worker=self.unit, attempts=1
        )
        await self.harness.records.update(id_, encode(record), revision)

    async def _answer_drain(self, request: bytes) -> bytes:
        if (self.in_flight == 0 or decode(request, DrainRequest).force) and not self.draining:
            self.draining = True
            self._stopping.set()
            await self.publish_event(WorkerEventKind.DRAINING)
        return encode(DrainStatus(accepted=self.draining, in_flight=self.in_flight))


@dataclass
class SidecarFleet:
    """Starts a fake sidecar for every worker unit of a function, like the kubelet."""

    harness: ActivatorHarness
    function: str
    concurrency: int = 1
    may_finish: asyncio.Event = field(default_factory=asyncio.Event)
    sidecars: dict[str, FakeSidecar] = field(default_factory=dict)
    """All sidecars by the UID of their unit, including those of deleted units."""
    max_units: int = 0
    """Maximum number of units that existed at the same time."""
    uses_function_unit: bool = False
    """Whether the function's own unit is the worker."""
    with_controller_manager: bool = False
    """Whether a controller manager runs. Then the workers have pods, and the sidecars use the UIDs of these pods."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator["SidecarFleet"]:
        self.may_finish.set()
        stopping = asyncio.Event()
        syncing = asyncio.create_task(self._sync_sidecars(stopping))
        try:
            yield self
        finally:
            self.may_finish.set()
            stopping.set()
            await syncing

    @property
    def finished_ids(self) -> list[str]:
        return [each for sidecar in self.sidecars.values() for each in sidecar.finished_ids]

    async def _sync_sidecars(self, stopping: asyncio.Event) -> None:
        running: dict[str, tuple[asyncio.Event, asyncio.Task[None]]] = {}
        while not stopping.is_set():
            units = {each["metadata"]["uid"]: each for each in await self._units()}
            self.max_units = max(self.max_units, len(units))
            for uid, unit in units.items():
                if uid not in running:
                    deleted = asyncio.Event()
                    running[uid] = (deleted, asyncio.create_task(self._run_sidecar(unit, deleted)))
            for uid in running.keys() - units.keys():
                running[uid][0].set()
                await running.pop(uid)[1]
            await asyncio.sleep(0.05)
        for deleted, task in running.values():
            deleted.set()
            await task

    async def _units(self) -> list[Object]:
        if not self.uses_function_unit:
            return await self.harness.list_workers(self.function)
        unit = as_dict(await self.harness.kube.get(UNIT, self.function, namespace=UNIT_NAMESPACE))
        return [unit] if unit["spec"]["running"] else []

    async def _run_sidecar(self, unit: Object, deleted: asyncio.Event) -> None:
        sidecar = FakeSidecar(self.harness, self.function, unit["metadata"]["name"], self.concurrency, self.may_finish)
        self.sidecars[unit["metadata"]["uid"]] = sidecar
        if self.with_controller_manager:
            sidecar.pod_uid = await self._recorded_pod_uid(unit)
        await self._set_phase(unit, "Ready")
        async with sidecar.running():
            await deleted.wait()
        await self._set_phase(unit, "Empty")

    async def _recorded_pod_uid(self, unit: Object) -> str:
        """Wait until the controller manager has recorded the pod of the unit."""
        name, found = unit["metadata"]["name"], ""

        async def is_recorded() -> bool:
            nonlocal found
            current = as_dict(await self.harness.kube.get(UNIT, name, namespace=UNIT_NAMESPACE))
            found = current.get("status", {}).get("podUID", "")
            return bool(found)

        await until(is_recorded, f"the pod of {name} is recorded")
        return found

    async def _set_phase(self, unit: Object, phase: str) -> None:
        """Set the phase of the function's own unit, like the controller manager."""
        if self.uses_function_unit:
            name, status = unit["metadata"]["name"], {"status": {"phase": phase}}
            await self.harness.kube.patch(
                UNIT.Status, name, status, namespace=UNIT_NAMESPACE, patch_type=PatchType.MERGE
            )


async def _no_dead_letter(_delivery: Delivery, _outcome: DeadLetterDelivery) -> None:
    return None
