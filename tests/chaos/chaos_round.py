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

from gpu_runtime.contract.crd.well_known import GROUP, MANAGED_BY_VALUE, VERSION, Label
from localcluster.supervisor_client import ProcessFailed, ProcessStatus
from tests.chaos import invariants
from tests.chaos.fake_kubelet import FakeKubelet
from tests.chaos.fault_injector import FaultInjector
from tests.chaos.fault_schedule import Fault, FaultKind
from tests.chaos.invariants import Snapshot
from tests.chaos.invocation_load import FUNCTION_SOURCE, INVOCATIONS_PATH, InvocationLoad, read_invocation
from tests.chaos.request_history import TERMINAL_STATES, Operation, RequestHistory
from tests.chaos.retrying_api_client import REQUEST_TIMEOUT_SECONDS, RetryingApiClient
from tests.chaos.system_under_test import MAX_DELIVERIES, SystemUnderTest
from tests.chaos.unit_load import STOCK_UNITS_PATH, UNITS_PATH, UnitLoad, create_storage
from tests.chaos.watch_invariants import API_SERVER_ERRORS, ClusterWatch
from tests.integration.controller_manager.conftest import STORAGE, UNIT, Object
from tests.integration.runtime_api.live_platform import STOCK_NAMESPACE, TOKEN, ClusterReader, seed_request
from tests.integration.runtime_api.live_platform import UNIT_NAMESPACE as INSTANCES

UNIT_LOAD_COUNT = 4
INITIAL_STOCK_COUNT = 8
MIN_LOAD_SECONDS = 35.0
"""Seconds of load, also where the faults are over before."""
RECOVERY_TIMEOUT_SECONDS = 90.0
"""Seconds after the last fault within which everything must be in order."""


JSZ_PATH = "/jsz?accounts=true&streams=true&consumers=true&config=true"
DUMPED_KINDS = "gpuunits,gpustorages,operations,leases,deployments,replicasets,pods,services,persistentvolumeclaims"


class InvariantViolated(Exception):
    """An invariant does not hold. The message says which, and by whom."""


@dataclass
class ChaosRound:
    platform: SystemUnderTest
    kubelet: FakeKubelet
    cluster_watch: ClusterWatch
    cluster_reader: ClusterReader
    faults: FaultInjector
    seed: int
    number: int
    schedule: tuple[Fault, ...]
    log: Callable[[str], None]
    history: RequestHistory = field(default_factory=RequestHistory)
    recovery_seconds: float = 0
    """Seconds after the last fault and the last new request until everything was in order."""
    executions: int = 0
    repeated_executions: int = 0
    """Executions of what had run before."""
    _restarts: dict[str, int] = field(default_factory=dict)
    """Of every process, when the round began."""

    @property
    def name(self) -> str:
        return f"r{self.number}"

    @property
    def flavor(self) -> str:
        return f"{self.name}-unit"

    @property
    def functions(self) -> tuple[str, str]:
        return f"{self.name}-quick", f"{self.name}-slow"

    @cached_property
    def executions_path(self) -> Path:
        """Where functions write down which invocation they run."""
        return self.platform.state_dir / f"{self.name}.executions"

    async def run(self) -> None:
        self._restarts = {each.name: each.restarts for each in await self._processes()}
        async with self._caller() as caller:
            shared = await self._prepare(caller)
            ends = time.monotonic() + max(
                MIN_LOAD_SECONDS, max((each.end_seconds for each in self.schedule), default=0)
            )
            await self._run_load_and_faults(caller, shared, ends)
            await self._wait_recovered(caller, ends)
            await self._replay(caller)
            await self._clean_up(caller)

    @asynccontextmanager
    async def _caller(self) -> AsyncIterator[RetryingApiClient]:
        urls = [f"http://127.0.0.1:{each.api_port}" for each in self.platform.api_replicas]
        headers, patience = {"Authorization": f"Bearer {TOKEN}"}, aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_SECONDS)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=patience) as http:
            yield RetryingApiClient(http, urls, self.history, f"{self.seed}/{self.number}")

    async def _prepare(self, caller: RetryingApiClient) -> list[str]:
        """Stock, two functions, and storages that everybody wants."""
        quick, slow = self.functions
        for name in (quick, slow):
            made: Any = UNIT.from_dict(function_manifest(name, str(self.executions_path)))
            await self.cluster_reader.kube.create(made)
        for flavor, count in ((self.flavor, INITIAL_STOCK_COUNT), (quick, 1)):
            request = seed_request(flavor, count)
            await caller.run_operation(Operation(request["operationID"], STOCK_UNITS_PATH, request), (202, 200))
            self.history.seeded[flavor] += count
        shared = [f"{self.name}-shared{number}" for number in range(2)]
        for name in shared:
            await create_storage(caller, name)
        for url in caller.replicas:  # each hears of new functions by itself
            await self._wait_functions_visible(caller, url)
        return shared

    async def _wait_functions_visible(self, caller: RetryingApiClient, url: str) -> None:
        for name in self.functions:
            for _ in range(600):
                async with caller.http.get(f"{url}{INVOCATIONS_PATH}", params={"serverlessRequestID": name}) as answer:
                    if answer.status == 200:
                        break
                await asyncio.sleep(0.1)

    async def _run_load_and_faults(self, caller: RetryingApiClient, shared: list[str], ends: float) -> None:
        quick, slow = self.functions
        async with self._finish_before(ends + RECOVERY_TIMEOUT_SECONDS), asyncio.TaskGroup() as tasks:
            for number in range(UNIT_LOAD_COUNT):
                name = f"{self.name}-c{number}"
                tasks.create_task(UnitLoad(caller.derive(name), name, self.flavor, shared).run(ends))
            tasks.create_task(InvocationLoad(caller.derive(quick), quick, (0, 0.05), (0.1, 0.5)).run(ends))
            tasks.create_task(InvocationLoad(caller.derive(slow), slow, (0.5, 4), (0.5, 1.5)).run(ends))
            tasks.create_task(self.faults.inject_all(self.schedule))
            tasks.create_task(self._check_continuously(ends))

    @asynccontextmanager
    async def _finish_before(self, deadline: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + deadline - time.monotonic()):
                yield
        except TimeoutError:
            waiting = "\n".join(self.history.pending_requests)
            raise InvariantViolated(
                f"not answered {RECOVERY_TIMEOUT_SECONDS:.0f} s after the last fault:\n{waiting}"
            ) from None

    async def _check_continuously(self, ends: float) -> None:
        """What must hold at any time, looked at all the time; and a line now and then."""
        began, said = time.monotonic(), time.monotonic()
        while time.monotonic() < ends:
            await asyncio.sleep(0.5)
            self._raise_violations(self._continuous_violations())
            if time.monotonic() - said > 10:
                said = time.monotonic()
                self.log(f"{said - began:5.1f} s  {self._progress()}")

    def _progress(self) -> str:
        ended = sum(each.finished for each in self.history.invocations.values())
        return (
            f"… {self.history.requests} requests, {self.history.retries} again, {len(self.history.units)} units asked"
            f" for, {len(self.history.invocations)} invocations, {ended} seen to end"
        )

    def _continuous_violations(self) -> Iterator[str]:
        yield from self.cluster_watch.violations
        yield from self.history.violations
        for operation in self.history.operations.values():
            yield from invariants.operation_id_violations(operation)
        for invocation in self.history.invocations.values():
            yield from (f"{invocation.id}: {each}" for each in invocation.violations)

    def _raise_violations(self, found: Iterator[str]) -> None:
        if violations := list(found):
            raise InvariantViolated("\n".join(violations))

    async def _wait_recovered(self, caller: RetryingApiClient, began: float) -> None:
        found: list[str] = ["nobody could look"]
        while found:
            if time.monotonic() - began > RECOVERY_TIMEOUT_SECONDS:
                raise InvariantViolated(
                    f"not in order {RECOVERY_TIMEOUT_SECONDS:.0f} s after the last fault:\n" + "\n".join(found)
                )
            await asyncio.sleep(0.5)
            found = await self._final_violations(caller)
        self.recovery_seconds = time.monotonic() - began
        self.executions, self.repeated_executions = invariants.count_executions(
            self.executions_path.read_text().splitlines()
        )
        self._raise_violations(self._result_violations())
        self._raise_violations(
            invariants.unexpected_exits(await self._processes(), self._restarts, self.faults.killed_processes)
        )
        self._raise_violations(await asyncio.to_thread(lambda: iter(list(self._tracebacks()))))
        listed = [each for name in self.functions for each in await self._list_results(caller, name)]
        self._raise_violations(invariants.unknown_results(listed, self.history))
        self._raise_violations(self._continuous_violations())

    async def _final_violations(self, caller: RetryingApiClient) -> list[str]:
        """All that is not yet as it must be in the end."""
        if missing := await self.platform.not_ready():
            return [f"not ready: {each}" for each in missing]
        await self._read_unfinished(caller)
        if waiting := [each.id for each in self.history.invocations.values() if not each.finished]:
            return [f"{each} has not ended" for each in waiting]
        try:
            world = await self._take_snapshot()
        except API_SERVER_ERRORS as error:
            return [f"the API server: {error}"]
        return [
            *invariants.stock_violations(world, self.history, self.functions),
            *invariants.unfinished_operations(world, (self.flavor, *self.functions)),
            *invariants.history_violations(world, self.history),
            *invariants.convergence_violations(world),
            *invariants.idle_violations(world, self.functions, self._nats_was_full),
        ]

    @property
    def _nats_was_full(self) -> bool:
        return any((each.kind, each.target) == (FaultKind.FULL_DISK, "nats") for each in self.schedule)

    async def _read_unfinished(self, caller: RetryingApiClient) -> None:
        waiting = [each for each in self.history.invocations.values() if not each.finished]
        await asyncio.gather(*(read_invocation(caller, each) for each in waiting))

    def _result_violations(self) -> Iterator[str]:
        lossy = any(each.target == "nats" for each in self.schedule)
        for invocation in self.history.invocations.values():
            yield from invariants.result_violations(invocation, MAX_DELIVERIES, replies_may_be_lost=lossy)

    async def _list_results(self, caller: RetryingApiClient, function: str) -> list[str]:
        found: list[str] = []
        for state in TERMINAL_STATES:
            path, more = f"{INVOCATIONS_PATH}?serverlessRequestID={function}&state={state}&limit=500", ""
            while True:
                answer, _ = await caller.request("GET", path + more, None, (200,))
                found += [each["invocationID"] for each in answer.body["data"]]
                if not (token := answer.body.get("continue")):
                    break
                more = f"&continue={token}"
        return found

    async def _take_snapshot(self) -> Snapshot:
        kinds: tuple[Any, ...] = (Pod, Deployment, Service)
        storages, claims = await asyncio.gather(
            self.cluster_reader.list_objects(STORAGE, INSTANCES),
            self.cluster_reader.list_objects(PersistentVolumeClaim, INSTANCES),
        )
        pods, deployments, services = [
            [
                each
                for space in (INSTANCES, STOCK_NAMESPACE)
                for each in await self.cluster_reader.list_objects(kind, space)
                if _is_managed(each)
            ]
            for kind in kinds
        ]
        named = {each["metadata"]["name"]: each for each in storages}
        queues = await self.platform.stream_backlogs()
        return Snapshot(await self.cluster_reader.snapshot(), named, pods, deployments, services, claims, queues)

    async def _replay(self, caller: RetryingApiClient) -> None:
        """Every request once more, every result once more: nothing has changed its meaning."""
        for operation in [each for each in self.history.operations.values() if each.succeeded]:
            await caller.send_operation(operation)
            await caller.send_operation(operation, replicas=7) if operation.path == STOCK_UNITS_PATH else None
        for invocation in self.history.invocations.values():
            await read_invocation(caller, invocation)
        self._raise_violations(self._result_violations())
        self._raise_violations(self._continuous_violations())
        self._raise_violations(iter(await self._final_violations(caller)))

    async def _clean_up(self, caller: RetryingApiClient) -> None:
        """Everything of the round goes: over the API what has a route there, and the rest as an operator would."""
        units, storages = (
            await self.cluster_reader.list_objects(UNIT, INSTANCES),
            await self.cluster_reader.list_objects(STORAGE, INSTANCES),
        )
        for unit in units:
            await caller.request("DELETE", f"{UNITS_PATH}/{unit['metadata']['name']}", None, (204, 404))
        for stock in await self.cluster_reader.list_objects(UNIT, STOCK_NAMESPACE):
            await self._delete_stock(stock["metadata"]["name"])
        for storage in storages:
            await self._delete_storage(caller, storage["metadata"]["name"])
        began, world = time.monotonic(), await self._take_snapshot()
        while left := _remaining_objects(world):
            if time.monotonic() - began > RECOVERY_TIMEOUT_SECONDS:
                raise InvariantViolated(f"not gone {RECOVERY_TIMEOUT_SECONDS:.0f} s after it was deleted: {left}")
            await asyncio.sleep(0.5)
            world = await self._take_snapshot()
        self.executions_path.unlink(missing_ok=True)
        await self._purge_streams(world)

    async def _purge_streams(self, world: Snapshot) -> None:
        """What a full disk has left in the queues and nobody gets, so that the next round begins with empty ones."""
        left = [name for name, queue in world.streams.items() if name in invariants.WORK_STREAMS and queue.messages]
        if left:
            counts = ", ".join(f"{world.streams[name].messages} in {name}" for name in left)
            self.log(f"        left behind by a full disk: {counts}")
            await self.platform.purge_streams(left)

    async def _delete_stock(self, stock: str) -> None:
        try:
            await self.cluster_reader.kube.delete(UNIT, stock, namespace=STOCK_NAMESPACE)
        except ApiError as error:
            if error.status.code != 404:
                raise

    async def _delete_storage(self, caller: RetryingApiClient, name: str) -> None:
        """Once its unit's pod is gone it is free, and can go."""
        for _ in range(round(RECOVERY_TIMEOUT_SECONDS)):
            answer, _ = await caller.request("DELETE", f"/api/v1/gpu-storages/{name}", None, (204, 404, 409))
            if answer.status != 409:
                return
            await asyncio.sleep(1)
        raise InvariantViolated(f"storage {name} is held by a unit that is gone")

    async def _processes(self) -> list[ProcessStatus]:
        return await asyncio.to_thread(self.platform.processes.list)

    def _tracebacks(self) -> Iterator[str]:
        """A process of the product that meets what it did not expect writes one."""
        for log in self.platform.processes.logs.glob("*.log"):
            text = "" if log.name.startswith("framework") else log.read_text(errors="replace")
            if (at := text.find("Traceback")) >= 0:
                yield f"{log.name}: {text[max(0, at - 500) : at + 3000]}"

    async def save_artifacts(self, folder: Path) -> None:
        """The logs, and what lies in the cluster and in the queues."""
        for name, logs in self.platform.log_dirs.items():
            shutil.copytree(logs, folder / name, dirs_exist_ok=True)
        queues = await self.platform.get(self.platform.nats.monitor_port, JSZ_PATH)
        (folder / "queues.json").write_text(queues)
        with suppress(ProcessFailed):
            said = await asyncio.to_thread(self.platform.control_plane.kubectl, "get", DUMPED_KINDS, "-A", "-o", "yaml")
            (folder / "objects.yaml").write_text(said)


def function_manifest(name: str, executions: str) -> Object:
    serverless = {"enabled": True, "requestID": name, "maxWorkers": 2, "concurrency": 4, "idleTimeoutSeconds": 3}
    template = {"command": ["python", "-c"], "args": [FUNCTION_SOURCE.format(executions=executions)]}
    spec = {"specName": name, "image": "gpu-runtime:local", "memory": "1Gi", "gpu": 1, "running": False}
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "GPUUnit",
        "metadata": {"name": name, "namespace": INSTANCES},
        "spec": spec | {"serverless": serverless, "template": template},
    }


def _is_managed(found: Object) -> bool:
    return (found["metadata"].get("labels") or {}).get(Label.MANAGED_BY) == MANAGED_BY_VALUE


def _remaining_objects(world: Snapshot) -> list[str]:
    kinds = (
        world.cluster.units,
        world.cluster.stock,
        world.storages.values(),
        world.pods,
        world.deployments,
        world.pvcs,
    )
    return [each["metadata"]["name"] for kind in kinds for each in kind]
