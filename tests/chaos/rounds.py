"""A round: load and faults, then quiet, and then everything must be in order. Rounds do not depend on each other."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import aiohttp
from lightkube import ApiError
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import PersistentVolumeClaim, Pod, Service

from gpu_runtime.contract.crd.well_known import GROUP, MANAGER, VERSION, Label
from localcluster.supervisor_client import ProcessFailed, Running
from tests.chaos import checks
from tests.chaos.callers import PATIENCE, Caller
from tests.chaos.checks import World
from tests.chaos.customers import SEEDINGS, UNITS, Customer, make_storage
from tests.chaos.faults import Faults
from tests.chaos.history import ENDS, History, Operation
from tests.chaos.invokers import INVOCATIONS, SOURCE, Invoker, look_up
from tests.chaos.kubelet import Kubelet
from tests.chaos.plan import Fault, Kind
from tests.chaos.platform import ATTEMPTS, Platform
from tests.chaos.watching import AWAY, Watch
from tests.integration.controller_manager.conftest import STORAGE, UNIT, Object
from tests.integration.runtime_api.live import STOCK, TOKEN, Eyes, seed_request
from tests.integration.runtime_api.live import UNITS as INSTANCES

CUSTOMERS = 4
FIRST_STOCK = 8
LEAST = 35.0
"""Seconds of load, also where the faults are over before."""
SETTLING = 90.0
"""Seconds after the last fault within which everything must be in order."""


QUEUES = "/jsz?accounts=true&streams=true&consumers=true&config=true"
OBJECTS = "gpuunits,gpustorages,operations,leases,deployments,replicasets,pods,services,persistentvolumeclaims"


class Violated(Exception):
    """An invariant does not hold. The message says which, and by whom."""


@dataclass
class Round:
    platform: Platform
    kubelet: Kubelet
    watch: Watch
    eyes: Eyes
    faults: Faults
    seed: int
    number: int
    plan: tuple[Fault, ...]
    tell: Callable[[str], None]
    history: History = field(default_factory=History)
    settled: float = 0
    """Seconds after the last fault and the last new request until everything was in order."""
    executions: int = 0
    again: int = 0
    """Executions of what had run before."""
    _restarts: dict[str, int] = field(default_factory=dict)
    """Of every process, when the round began."""

    @property
    def name(self) -> str:
        return f"r{self.number}"

    @property
    def flavour(self) -> str:
        return f"{self.name}-unit"

    @property
    def functions(self) -> tuple[str, str]:
        return f"{self.name}-quick", f"{self.name}-slow"

    @cached_property
    def told(self) -> Path:
        """Where functions write down which invocation they run."""
        return self.platform.state / f"{self.name}.executions"

    async def run(self) -> None:
        self._restarts = {each.name: each.restarts for each in await self._processes()}
        async with self._caller() as caller:
            shared = await self._prepare(caller)
            ends = time.monotonic() + max(LEAST, max((each.ends for each in self.plan), default=0))
            await self._disturbed(caller, shared, ends)
            await self._settle(caller, ends)
            await self._replay(caller)
            await self._clear(caller)

    @asynccontextmanager
    async def _caller(self) -> AsyncIterator[Caller]:
        urls = [f"http://127.0.0.1:{each.api}" for each in self.platform.replicas]
        headers, patience = {"Authorization": f"Bearer {TOKEN}"}, aiohttp.ClientTimeout(total=PATIENCE)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=patience) as http:
            yield Caller(http, urls, self.history, f"{self.seed}/{self.number}")

    async def _prepare(self, caller: Caller) -> list[str]:
        """Stock, two functions, and storages that everybody wants."""
        quick, slow = self.functions
        for name in (quick, slow):
            made: Any = UNIT.from_dict(function(name, str(self.told)))
            await self.eyes.kube.create(made)
        for flavour, count in ((self.flavour, FIRST_STOCK), (quick, 1)):
            request = seed_request(flavour, count)
            await caller.operate(Operation(request["operationID"], SEEDINGS, request), (202, 200))
            self.history.seeded[flavour] += count
        shared = [f"{self.name}-shared{number}" for number in range(2)]
        for name in shared:
            await make_storage(caller, name)
        for url in caller.replicas:  # each hears of new functions by itself
            await self._known(caller, url)
        return shared

    async def _known(self, caller: Caller, url: str) -> None:
        for name in self.functions:
            for _ in range(600):
                async with caller.http.get(f"{url}{INVOCATIONS}", params={"serverlessRequestID": name}) as answer:
                    if answer.status == 200:
                        break
                await asyncio.sleep(0.1)

    async def _disturbed(self, caller: Caller, shared: list[str], ends: float) -> None:
        quick, slow = self.functions
        async with self._within(ends + SETTLING), asyncio.TaskGroup() as tasks:
            for number in range(CUSTOMERS):
                name = f"{self.name}-c{number}"
                tasks.create_task(Customer(caller.other(name), name, self.flavour, shared).live(ends))
            tasks.create_task(Invoker(caller.other(quick), quick, (0, 0.05), (0.1, 0.5)).live(ends))
            tasks.create_task(Invoker(caller.other(slow), slow, (0.5, 4), (0.5, 1.5)).live(ends))
            tasks.create_task(self.faults.happen(self.plan))
            tasks.create_task(self._attend(ends))

    @asynccontextmanager
    async def _within(self, deadline: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + deadline - time.monotonic()):
                yield
        except TimeoutError:
            waiting = "\n".join(self.history.waiting)
            raise Violated(f"not answered {SETTLING:.0f} s after the last fault:\n{waiting}") from None

    async def _attend(self, ends: float) -> None:
        """What must hold at any time, looked at all the time; and a line now and then."""
        began, said = time.monotonic(), time.monotonic()
        while time.monotonic() < ends:
            await asyncio.sleep(0.5)
            self._raise(self._at_any_time())
            if time.monotonic() - said > 10:
                said = time.monotonic()
                self.tell(f"{said - began:5.1f} s  {self._progress()}")

    def _progress(self) -> str:
        ended = sum(each.ended for each in self.history.invocations.values())
        return (
            f"… {self.history.requests} requests, {self.history.again} again, {len(self.history.units)} units asked"
            f" for, {len(self.history.invocations)} invocations, {ended} seen to end"
        )

    def _at_any_time(self) -> Iterator[str]:
        yield from self.watch.violations
        yield from self.history.complaints
        for operation in self.history.operations.values():
            yield from checks.one_meaning(operation)
        for invocation in self.history.invocations.values():
            yield from (f"{invocation.id}: {each}" for each in invocation.complaints)

    def _raise(self, found: Iterator[str]) -> None:
        if violations := list(found):
            raise Violated("\n".join(violations))

    async def _settle(self, caller: Caller, began: float) -> None:
        found: list[str] = ["nobody could look"]
        while found:
            if time.monotonic() - began > SETTLING:
                raise Violated(f"not in order {SETTLING:.0f} s after the last fault:\n" + "\n".join(found))
            await asyncio.sleep(0.5)
            found = await self._disorder(caller)
        self.settled = time.monotonic() - began
        self.executions, self.again = checks.executions(self.told.read_text().splitlines())
        self._raise(self._ended())
        self._raise(checks.unexpected(await self._processes(), self._restarts, self.faults.killed))
        self._raise(await asyncio.to_thread(lambda: iter(list(self._tracebacks()))))
        listed = [each for name in self.functions for each in await self._listed(caller, name)]
        self._raise(checks.none_unknown(listed, self.history))
        self._raise(self._at_any_time())

    async def _disorder(self, caller: Caller) -> list[str]:
        """All that is not yet as it must be in the end."""
        if missing := await self.platform.not_ready():
            return [f"not ready: {each}" for each in missing]
        await self._look_up(caller)
        if waiting := [each.id for each in self.history.invocations.values() if not each.ended]:
            return [f"{each} has not ended" for each in waiting]
        try:
            world = await self._world()
        except AWAY as error:
            return [f"the API server: {error}"]
        return [
            *checks.conserved(world, self.history, self.functions),
            *checks.finished(world, (self.flavour, *self.functions)),
            *checks.as_asked(world, self.history),
            *checks.converged(world),
            *checks.at_rest(world, self.functions, self._nats_was_full),
        ]

    @property
    def _nats_was_full(self) -> bool:
        return any((each.kind, each.target) == (Kind.FULL, "nats") for each in self.plan)

    async def _look_up(self, caller: Caller) -> None:
        waiting = [each for each in self.history.invocations.values() if not each.ended]
        await asyncio.gather(*(look_up(caller, each) for each in waiting))

    def _ended(self) -> Iterator[str]:
        lossy = any(each.target == "nats" for each in self.plan)
        for invocation in self.history.invocations.values():
            yield from checks.one_end(invocation, ATTEMPTS, replies_may_be_lost=lossy)

    async def _listed(self, caller: Caller, function: str) -> list[str]:
        found: list[str] = []
        for state in ENDS:
            path, more = f"{INVOCATIONS}?serverlessRequestID={function}&state={state}&limit=500", ""
            while True:
                answer, _ = await caller.answered("GET", path + more, None, (200,))
                found += [each["invocationID"] for each in answer.body["data"]]
                if not (token := answer.body.get("continue")):
                    break
                more = f"&continue={token}"
        return found

    async def _world(self) -> World:
        kinds: tuple[Any, ...] = (Pod, Deployment, Service)
        storages, claims = await asyncio.gather(
            self.eyes.all(STORAGE, INSTANCES), self.eyes.all(PersistentVolumeClaim, INSTANCES)
        )
        pods, deployments, services = [
            [each for space in (INSTANCES, STOCK) for each in await self.eyes.all(kind, space) if _is_ours(each)]
            for kind in kinds
        ]
        named = {each["metadata"]["name"]: each for each in storages}
        queues = await self.platform.queues()
        return World(await self.eyes.look(), named, pods, deployments, services, claims, queues)

    async def _replay(self, caller: Caller) -> None:
        """Every request once more, every result once more: nothing has changed its meaning."""
        for operation in [each for each in self.history.operations.values() if each.succeeded]:
            await caller.try_once(operation)
            await caller.try_once(operation, replicas=7) if operation.path == SEEDINGS else None
        for invocation in self.history.invocations.values():
            await look_up(caller, invocation)
        self._raise(self._ended())
        self._raise(self._at_any_time())
        self._raise(iter(await self._disorder(caller)))

    async def _clear(self, caller: Caller) -> None:
        """Everything of the round goes: over the API what has a route there, and the rest as an operator would."""
        units, storages = await self.eyes.all(UNIT, INSTANCES), await self.eyes.all(STORAGE, INSTANCES)
        for unit in units:
            await caller.answered("DELETE", f"{UNITS}/{unit['metadata']['name']}", None, (204, 404))
        for stock in await self.eyes.all(UNIT, STOCK):
            await self._delete(stock["metadata"]["name"])
        for storage in storages:
            await self._free(caller, storage["metadata"]["name"])
        began, world = time.monotonic(), await self._world()
        while left := _left(world):
            if time.monotonic() - began > SETTLING:
                raise Violated(f"not gone {SETTLING:.0f} s after it was deleted: {left}")
            await asyncio.sleep(0.5)
            world = await self._world()
        self.told.unlink(missing_ok=True)
        await self._purge(world)

    async def _purge(self, world: World) -> None:
        """What a full disk has left in the queues and nobody gets, so that the next round begins with empty ones."""
        left = [name for name, queue in world.queues.items() if name in checks.QUEUES and queue.messages]
        if left:
            counts = ", ".join(f"{world.queues[name].messages} in {name}" for name in left)
            self.tell(f"        left behind by a full disk: {counts}")
            await self.platform.purge(left)

    async def _delete(self, stock: str) -> None:
        try:
            await self.eyes.kube.delete(UNIT, stock, namespace=STOCK)
        except ApiError as error:
            if error.status.code != 404:
                raise

    async def _free(self, caller: Caller, name: str) -> None:
        """Once its unit's pod is gone it is free, and can go."""
        for _ in range(round(SETTLING)):
            answer, _ = await caller.answered("DELETE", f"/api/v1/gpu-storages/{name}", None, (204, 404, 409))
            if answer.status != 409:
                return
            await asyncio.sleep(1)
        raise Violated(f"storage {name} is held by a unit that is gone")

    async def _processes(self) -> list[Running]:
        return await asyncio.to_thread(self.platform.processes.list)

    def _tracebacks(self) -> Iterator[str]:
        """A process of the product that meets what it did not expect writes one."""
        for log in self.platform.processes.logs.glob("*.log"):
            text = "" if log.name.startswith("framework") else log.read_text(errors="replace")
            if (at := text.find("Traceback")) >= 0:
                yield f"{log.name}: {text[max(0, at - 500) : at + 3000]}"

    async def keep(self, folder: Path) -> None:
        """The logs, and what lies in the cluster and in the queues."""
        for name, logs in self.platform.logs.items():
            shutil.copytree(logs, folder / name, dirs_exist_ok=True)
        queues = await self.platform.get(self.platform.nats.monitor, QUEUES)
        (folder / "queues.json").write_text(queues)
        with suppress(ProcessFailed):
            said = await asyncio.to_thread(self.platform.plane.kubectl, "get", OBJECTS, "-A", "-o", "yaml")
            (folder / "objects.yaml").write_text(said)


def function(name: str, executions: str) -> Object:
    serverless = {"enabled": True, "requestID": name, "maxWorkers": 2, "concurrency": 4, "idleTimeoutSeconds": 3}
    template = {"command": ["python", "-c"], "args": [SOURCE.format(executions=executions)]}
    spec = {"specName": name, "image": "gpu-runtime:local", "memory": "1Gi", "gpu": 1, "running": False}
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "GPUUnit",
        "metadata": {"name": name, "namespace": INSTANCES},
        "spec": spec | {"serverless": serverless, "template": template},
    }


def _is_ours(found: Object) -> bool:
    return (found["metadata"].get("labels") or {}).get(Label.MANAGED_BY) == MANAGER


def _left(world: World) -> list[str]:
    kinds = (world.seen.units, world.seen.stock, world.storages.values(), world.pods, world.deployments, world.claims)
    return [each["metadata"]["name"] for kind in kinds for each in kind]
