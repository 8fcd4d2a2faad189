"""The serverless plane around an activator: callers, results and workers, over real NATS and a real API server."""

import asyncio
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import msgspec
import yaml
from lightkube import ApiError, AsyncClient
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.types import PatchType

from gpu_runtime.activator.main import Activator, assemble
from gpu_runtime.activator.settings import API, ActivatorSettings, Dispatching, Reaping, Scaling
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.drain_request import Drain, Drained
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_id import invocation_hash
from gpu_runtime.contract.messages.invocation_record import (
    REVISION,
    InvocationRecord,
    Known,
    Stage,
    advanced,
    headers_of,
    taken_back,
)
from gpu_runtime.contract.messages.message_codec import decode, encode, utc
from gpu_runtime.contract.messages.result import Result, ResultState, Timings
from gpu_runtime.contract.messages.streams import Topology
from gpu_runtime.contract.messages.subjects import Queue
from gpu_runtime.contract.messages.worker_event import WorkerEvent, WorkerEventKind
from gpu_runtime.jetstream.connection import Connection
from gpu_runtime.jetstream.delivery import Delivery, Done, GiveUp, Outcome, Outgoing
from gpu_runtime.jetstream.errors import StreamError
from gpu_runtime.jetstream.kv import Bucket
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.pull_consumer import Consumption, Policy
from gpu_runtime.jetstream.request_reply import answering
from gpu_runtime.jetstream.stream_admin import messages_by_subject
from gpu_runtime.kube.client import connect
from gpu_runtime.kube.config import load_config
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.process.shared_settings import LeaderElection, Nats, Streams
from localcluster.control_plane import ControlPlane
from tests.integration.controller_manager.conftest import PROGRAM, UNIT, Manager, Object, as_dict

UNITS, STOCK = "runtime-instance", "runtime-stock"
IDENTITY = "system:serviceaccount:runtime-system:activator"
ALONE = LeaderElection(enabled=False)


def nats_settings(url: str) -> Nats:
    """Streams that reserve little, since every test has its own."""
    return Nats(urls=(url,), streams=Streams(queue_bytes=8 * 1024**2, dead_letter_bytes=1024**2))


def now() -> datetime:
    return utc(datetime.now(UTC))


async def until(condition: Callable[[], Awaitable[bool]], what: str, seconds: float = 60) -> float:
    """Wait until it holds, and tell how long that took."""
    began = time.monotonic()
    while not await condition():
        assert time.monotonic() - began < seconds, f"not within {seconds:g} s: {what}"
        await asyncio.sleep(0.02)
    return time.monotonic() - began


@dataclass
class Plane:
    control: ControlPlane
    kube: AsyncClient
    nats: Connection
    topology: Topology
    nats_url: str
    api_url: str
    results: dict[str, Result] = field(default_factory=dict)
    """The first of each invocation: that one stands."""
    repeated: list[Result] = field(default_factory=list)

    @property
    def publisher(self) -> Publisher:
        return Publisher(self.nats)

    @property
    def records(self) -> Bucket:
        return Bucket(self.nats, self.publisher, self.topology.state)

    def settings(self, **changes: Any) -> ActivatorSettings:
        usual = ActivatorSettings(
            nats=nats_settings(self.nats_url),
            api=API(url=self.api_url),
            leader_election=ALONE,
            dispatching=Dispatching(unknown_seconds=0.3),
            scaling=Scaling(pass_seconds=0.2, drain_seconds=1),
            reaping=Reaping(pass_seconds=0.2, grace_seconds=0.3, gone_seconds=0.5),
        )
        return msgspec.structs.replace(usual, **changes)

    @asynccontextmanager
    async def activator(self, connected: Connection | None = None, **changes: Any) -> AsyncIterator[Activator]:
        """One for the length of the block, under the identity that the RBAC manifests give it."""
        config = load_config(self.control.kubeconfig_for("activator", IDENTITY))
        stopping, metrics = asyncio.Event(), KubeMetrics()
        async with connect(config, field_manager="activator") as client, aiohttp.ClientSession() as http:
            made = assemble(client, connected or self.nats, http, self.settings(**changes), metrics)
            running = asyncio.create_task(made.run(stopping))
            try:
                await made.functions.units.synced()
                yield made
            finally:
                stopping.set()
                await running

    async def accept(self, request_id: str, *, seconds: float = 600, body: bytes = b"{}", **about: Any) -> Invocation:
        """As the runtime API does it: the record first, then the message that carries it."""
        invocation = Invocation(
            invocation_id=about.pop("id", "") or f"inv-{uuid.uuid4().hex}",
            serverless_request_id=request_id,
            body=body,
            enqueued_at=now(),
            timeout_seconds=seconds,
            **about,
        )
        record = InvocationRecord(
            request_hash=invocation_hash(invocation),
            serverless_request_id=request_id,
            enqueued_at=now(),
            deadline=now() + timedelta(seconds=seconds),
            updated_at=now(),
        )
        revision = await self.records.create(invocation.invocation_id, encode(record))
        await self.send(invocation, Known(record, revision) if revision else None)
        return invocation

    async def send(self, invocation: Invocation, known: Known | None) -> None:
        headers = headers_of(known) if known else {}
        subject = self.topology.subjects.invoke(invocation.serverless_request_id)
        await self.publisher.publish(Outgoing(subject, encode(invocation), headers=headers))

    async def cancel(self, invocation: Invocation) -> None:
        """As the runtime API does it, up to the hint: it dies before it publishes the result."""
        entry = await self.records.get(invocation.invocation_id)
        assert entry
        record = taken_back(decode(entry.value, InvocationRecord), now())
        assert await self.records.update(invocation.invocation_id, encode(record), entry.revision)
        subject = self.topology.subjects.cancel(invocation.serverless_request_id)
        await self.nats.publish(subject, invocation.invocation_id.encode())

    async def record(self, invocation_id: str) -> InvocationRecord:
        entry = await self.records.get(invocation_id)
        assert entry
        return decode(entry.value, InvocationRecord)

    async def result(self, invocation: Invocation, seconds: float = 60) -> Result:
        async def there() -> bool:
            return invocation.invocation_id in self.results

        await until(there, f"{invocation.invocation_id} has its result", seconds)
        return self.results[invocation.invocation_id]

    async def waiting(self, request_id: str, queue: Queue = Queue.DISPATCH) -> int:
        subject = self.topology.subjects.queue(queue, request_id)
        return sum((await messages_by_subject(self.nats, self.topology.stream_name(queue), subject)).values())

    @asynccontextmanager
    async def storing(self) -> AsyncIterator[None]:
        """Play the result store: the first result of an invocation stands, and its record becomes terminal."""
        stopping = asyncio.Event()

        async def store(delivery: Delivery) -> Outcome:
            result = decode(delivery.data, Result)
            if result.invocation_id in self.results:
                self.repeated.append(result)
            self.results.setdefault(result.invocation_id, result)
            return Done()

        consumption = Consumption(self.publisher, self.topology.storing, store, lambda *_: (), Policy())
        running = asyncio.create_task(consumption.run(stopping))
        try:
            yield
        finally:
            stopping.set()
            await running

    async def function(self, name: str, *, flavour: str = "", spec: Object | None = None, **serverless: Any) -> Object:
        """A function that is stopped, so that every worker of it is made by the activator."""
        wanted = {
            "specName": flavour or name,
            "image": "python:3.12",
            "memory": "1Gi",
            "gpu": 1,
            "running": False,
            "serverless": {"enabled": True, "requestID": name, "idleTimeoutSeconds": 1, **serverless},
        }
        return await self.create(UNITS, name, wanted | (spec or {}))

    async def create(self, namespace: str, name: str, spec: Object) -> Object:
        metadata = ObjectMeta(name=name, namespace=namespace)
        return as_dict(await self.kube.create(UNIT(metadata=metadata, spec=spec)))

    async def stock(self, flavour: str, count: int) -> None:
        """Stock that is Ready, as the controller manager would say."""
        for number in range(count):
            name = f"stock-{flavour}-{number}"
            await self.create(STOCK, name, {"specName": flavour, "memory": "2Gi", "gpu": 1})
            await self.ready(name)

    async def ready(self, stock: str) -> None:
        status = {"status": {"phase": "Ready"}}
        await self.kube.patch(UNIT.Status, stock, status, namespace=STOCK, patch_type=PatchType.MERGE)

    async def units(self, namespace: str, flavour: str) -> list[Object]:
        found = [as_dict(each) async for each in self.kube.list(UNIT, namespace=namespace)]
        return [each for each in found if each["spec"]["specName"] == flavour]

    async def workers(self, function: str) -> list[Object]:
        found = [as_dict(each) async for each in self.kube.list(UNIT, namespace=UNITS)]
        return [each for each in found if each["spec"].get("serverless", {}).get("workerOf") == function]

    async def patch(self, name: str, patch: Object, namespace: str = UNITS) -> None:
        await self.kube.patch(UNIT, name, patch, namespace=namespace, patch_type=PatchType.MERGE)

    async def delete(self, name: str, namespace: str = UNITS) -> None:
        try:
            await self.kube.delete(UNIT, name, namespace=namespace)
        except ApiError as error:
            if error.status.code != 404:
                raise

    async def clear(self) -> None:
        for namespace in (UNITS, STOCK):
            async for each in self.kube.list(UNIT, namespace=namespace):
                assert each.metadata
                await self.delete(str(each.metadata.name), namespace)


class ActivatorProcess(Manager):
    """An activator as a process of its own, which can be killed."""

    def start(self) -> "ActivatorProcess":
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "settings.yaml"
        settings = {
            "log": {"level": "debug", "format": "text"},
            "endpoints": {"bind": f"127.0.0.1:{self.port}"},
            "kubernetes": {"kubeconfig": str(self.kubeconfig)},
        }
        config.write_text(yaml.safe_dump(settings | self.settings))
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", PROGRAM, "activator", "--config", config], stderr=log
            )
        return self


@dataclass
class Sidecar:
    """A worker as the plane sees it: it says how it is, pulls, and takes no more when it is asked."""

    plane: Plane
    request_id: str
    worker: str
    concurrency: int = 1
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    """While it is not set, work in hand does not end."""
    instance: str = field(default_factory=lambda: str(uuid.uuid4()))
    holding: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    draining: bool = False
    began: float = field(default_factory=time.monotonic)
    _sequence: int = 0
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def in_flight(self) -> int:
        return len(self.holding)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Sidecar"]:
        topology, plane = self.plane.topology, self.plane
        policy = Policy(at_once=self.concurrency)
        consumption = Consumption(plane.publisher, topology.work(self.request_id), self._work, _given_up, policy)
        async with answering(plane.nats, topology.subjects.control(self.instance), self._answer):
            await self.say(WorkerEventKind.REGISTERED)
            tasks = [asyncio.create_task(consumption.run(self._stopping)), asyncio.create_task(self._beat())]
            try:
                yield self
            finally:
                self.go_on.set()
                self._stopping.set()
                await asyncio.wait(tasks)

    async def say(self, kind: WorkerEventKind) -> None:
        self._sequence += 1
        event = WorkerEvent(
            kind=kind,
            serverless_request_id=self.request_id,
            worker=self.worker,
            namespace=UNITS,
            instance=self.instance,
            sequence=self._sequence,
            at=now(),
            in_flight=self.in_flight,
            concurrency=self.concurrency,
        )
        await self.plane.nats.publish(self.plane.topology.subjects.events(self.request_id), encode(event))

    async def _beat(self) -> None:
        while not self._stopping.is_set():
            with suppress(StreamError):
                await self.say(WorkerEventKind.HEARTBEAT)
            await asyncio.sleep(0.1)

    async def _work(self, delivery: Delivery) -> Outcome:
        dispatch = decode(delivery.data, Dispatch)
        id_ = dispatch.invocation.invocation_id
        self.holding.append(id_)
        await self._note(id_, int(delivery.headers[REVISION]))
        await self.say(WorkerEventKind.STARTED)
        await self.go_on.wait()
        result = Result(
            invocation_id=id_,
            serverless_request_id=self.request_id,
            state=ResultState.SUCCEEDED,
            timings=Timings(finished_at=now()),
            worker=self.worker,
        )
        subject = self.plane.topology.subjects.result(self.request_id)
        await self.plane.publisher.publish(Outgoing(subject, encode(result), result.message_id))
        self.holding.remove(id_)
        self.done.append(id_)
        await self.say(WorkerEventKind.FINISHED)
        return Done()

    async def _note(self, id_: str, revision: int) -> None:
        record = advanced(await self.plane.record(id_), Stage.RUNNING, now(), self.worker)
        await self.plane.records.update(id_, encode(record), revision)

    async def _answer(self, question: bytes) -> bytes:
        if (self.in_flight == 0 or decode(question, Drain).finishing) and not self.draining:
            self.draining = True
            self._stopping.set()
            await self.say(WorkerEventKind.DRAINING)
        return encode(Drained(draining=self.draining, in_flight=self.in_flight))


@dataclass
class Fleet:
    """Gives every worker unit of a function its sidecar, as the kubelet would."""

    plane: Plane
    function: str
    concurrency: int = 1
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    sidecars: dict[str, Sidecar] = field(default_factory=dict)
    """By the UIDs of their units, also those that are gone."""
    most: int = 0
    """The most units there were at a time."""
    own: bool = False
    """Whether the function's own unit runs as a worker."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Fleet"]:
        self.go_on.set()
        ended = asyncio.Event()
        following = asyncio.create_task(self._follow(ended))
        try:
            yield self
        finally:
            self.go_on.set()
            ended.set()
            await following

    @property
    def done(self) -> list[str]:
        return [each for sidecar in self.sidecars.values() for each in sidecar.done]

    async def _follow(self, ended: asyncio.Event) -> None:
        living: dict[str, tuple[asyncio.Event, asyncio.Task[None]]] = {}
        while not ended.is_set():
            units = {each["metadata"]["uid"]: each for each in await self._units()}
            self.most = max(self.most, len(units))
            for uid, unit in units.items():
                if uid not in living:
                    over = asyncio.Event()
                    living[uid] = (over, asyncio.create_task(self._live(unit, over)))
            for uid in living.keys() - units.keys():
                living[uid][0].set()
                await living.pop(uid)[1]
            await asyncio.sleep(0.05)
        for over, life in living.values():
            over.set()
            await life

    async def _units(self) -> list[Object]:
        if not self.own:
            return await self.plane.workers(self.function)
        found = as_dict(await self.plane.kube.get(UNIT, self.function, namespace=UNITS))
        return [found] if found["spec"]["running"] else []

    async def _live(self, unit: Object, over: asyncio.Event) -> None:
        sidecar = Sidecar(self.plane, self.function, unit["metadata"]["name"], self.concurrency, self.go_on)
        self.sidecars[unit["metadata"]["uid"]] = sidecar
        await self._report(unit, "Ready")
        async with sidecar.running():
            await over.wait()
        await self._report(unit, "Empty")

    async def _report(self, unit: Object, phase: str) -> None:
        """What the controller manager would say of a function's own unit."""
        if self.own:
            name, status = unit["metadata"]["name"], {"status": {"phase": phase}}
            await self.plane.kube.patch(UNIT.Status, name, status, namespace=UNITS, patch_type=PatchType.MERGE)


def _given_up(_delivery: Delivery, _outcome: GiveUp) -> list[Outgoing]:
    return []
