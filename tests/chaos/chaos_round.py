"""Runs one chaos round: load with faults, then recovery, then the final check of all invariants.

Rounds do not depend on each other.
"""

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
from lightkube.resources.apps_v1 import Deployment, ReplicaSet
from lightkube.resources.core_v1 import PersistentVolumeClaim, Pod, Service

from gpu_runtime.contract.crd.well_known import GROUP, MANAGED_BY_VALUE, VERSION, Label
from localcluster.supervisor_client import ProcessFailed, ProcessStatus
from tests.chaos import invariants, stock_invariants
from tests.chaos.fake_kubelet import FakeKubelet
from tests.chaos.fault_injector import FaultInjector
from tests.chaos.fault_schedule import Fault, FaultKind
from tests.chaos.invariants import Snapshot
from tests.chaos.invocation_load import FUNCTION_SOURCE, INVOCATIONS_PATH, InvocationLoad, read_invocation
from tests.chaos.request_history import TERMINAL_STATES, Operation, RequestHistory
from tests.chaos.retrying_api_client import REQUEST_TIMEOUT_SECONDS, RetryingApiClient
from tests.chaos.system_under_test import MAX_ATTEMPTS, SystemUnderTest
from tests.chaos.unit_load import (
    PREPARED_IMAGE,
    PREPARED_TEMPLATE,
    STOCK_UNITS_PATH,
    UNITS_PATH,
    UnitLoad,
    create_storage,
)
from tests.chaos.watch_invariants import API_SERVER_ERRORS, ClusterWatch
from tests.integration.controller_manager.conftest import POOL, STORAGE, UNIT, Object
from tests.integration.runtime_api.live_platform import (
    STOCK_NAMESPACE,
    TOKEN,
    UNIT_NAMESPACE,
    ClusterReader,
    seed_request,
)

UNIT_LOAD_COUNT = 4
INITIAL_STOCK_COUNT = 8
POOL_REPLICAS = 3
"""Fewer pods than clients, so that clients compete for the last prepared pod."""
POOLS_PATH = "/api/v1/operator/stockpools"
MIN_LOAD_SECONDS = 35.0
"""The minimum duration of the load. The load also continues for this time if the last fault ends earlier."""
RECOVERY_TIMEOUT_SECONDS = 90.0
"""All invariants must hold within this time after the last fault."""

JSZ_PATH = "/jsz?accounts=true&streams=true&consumers=true&config=true"
DUMPED_KINDS = (
    "gpuunits,gpustorages,stockpools,operations,leases,deployments,replicasets,pods,services,persistentvolumeclaims"
)


class InvariantViolated(Exception):
    """An invariant does not hold. The message names the invariant and the object."""


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
    """The time from the last fault and the last new request until all invariants held."""
    executions: int = 0
    repeated_executions: int = 0
    """Executions of invocations that had been executed before."""
    _restarts: dict[str, int] = field(default_factory=dict)
    """The restart count of every process at the start of the round."""

    @property
    def name(self) -> str:
        return f"r{self.number}"

    @property
    def flavor(self) -> str:
        return f"{self.name}-unit"

    @property
    def pool(self) -> Object:
        """The adoptable pool of the flavor."""
        return pool_manifest(f"{self.name}-pool", self.flavor)

    @property
    def functions(self) -> tuple[str, str]:
        return f"{self.name}-quick", f"{self.name}-slow"

    @cached_property
    def executions_path(self) -> Path:
        """The file to which functions append the IDs of the invocations that they execute."""
        return self.platform.state_dir / f"{self.name}.executions"

    async def run(self) -> None:
        self._restarts = {each.name: each.restarts for each in await self._processes()}
        async with self._caller() as caller:
            shared = await self._prepare(caller)
            load_end = time.monotonic() + max(
                MIN_LOAD_SECONDS, max((each.end_seconds for each in self.schedule), default=0)
            )
            await self._run_load_and_faults(caller, shared, load_end)
            await self._wait_recovered(caller, load_end)
            await self._replay(caller)
            await self._clean_up(caller)

    @asynccontextmanager
    async def _caller(self) -> AsyncIterator[RetryingApiClient]:
        urls = [f"http://127.0.0.1:{each.api_port}" for each in self.platform.api_replicas]
        headers, timeout = {"Authorization": f"Bearer {TOKEN}"}, aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_SECONDS)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as http:
            yield RetryingApiClient(http, urls, self.history, f"{self.seed}/{self.number}")

    async def _prepare(self, caller: RetryingApiClient) -> list[str]:
        """Create stock of both grades, two functions, and two storages that all unit loads share.

        Return the names of the storages.
        """
        quick, slow = self.functions
        for name in (quick, slow):
            unit: Any = UNIT.from_dict(function_manifest(name, str(self.executions_path)))
            await self.cluster_reader.kube.create(unit)
        pool: Any = POOL.from_dict(self.pool)
        await self.cluster_reader.kube.create(pool)
        for flavor, count in ((self.flavor, INITIAL_STOCK_COUNT), (quick, 1)):
            request = seed_request(flavor, count)
            await caller.run_operation(Operation(request["operationID"], STOCK_UNITS_PATH, request), (202, 200))
            self.history.seeded[flavor] += count
        shared = [f"{self.name}-shared{number}" for number in range(2)]
        for name in shared:
            await create_storage(caller, name)
        for url in caller.replicas:  # each replica has its own cache of the functions
            await self._wait_functions_visible(caller, url)
            await self._wait_prepared_pods_visible(caller, url)
        return shared

    @property
    def _pool_path(self) -> str:
        return f"{POOLS_PATH}/{self.pool['metadata']['name']}?namespace={UNIT_NAMESPACE}"

    async def _wait_prepared_pods_visible(self, caller: RetryingApiClient, url: str) -> None:
        for _ in range(600):
            async with caller.http.get(f"{url}{self._pool_path}") as response:
                if response.status == 200 and (await response.json())["data"]["prepared"] == POOL_REPLICAS:
                    return
            await asyncio.sleep(0.1)
        raise InvariantViolated(f"{url} does not see {POOL_REPLICAS} prepared pods")

    async def _wait_functions_visible(self, caller: RetryingApiClient, url: str) -> None:
        for name in self.functions:
            for _ in range(600):
                query = {"serverlessRequestID": name}
                async with caller.http.get(f"{url}{INVOCATIONS_PATH}", params=query) as response:
                    if response.status == 200:
                        break
                await asyncio.sleep(0.1)

    async def _run_load_and_faults(self, caller: RetryingApiClient, shared: list[str], load_end: float) -> None:
        quick, slow = self.functions
        async with self._finish_before(load_end + RECOVERY_TIMEOUT_SECONDS), asyncio.TaskGroup() as tasks:
            for number in range(UNIT_LOAD_COUNT):
                name = f"{self.name}-c{number}"
                tasks.create_task(UnitLoad(caller.derive(name), name, self.flavor, shared).run(load_end))
            tasks.create_task(InvocationLoad(caller.derive(quick), quick, (0, 0.05), (0.1, 0.5)).run(load_end))
            tasks.create_task(InvocationLoad(caller.derive(slow), slow, (0.5, 4), (0.5, 1.5)).run(load_end))
            tasks.create_task(self.faults.inject_all(self.schedule))
            tasks.create_task(self._check_continuously(load_end))

    @asynccontextmanager
    async def _finish_before(self, deadline: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + deadline - time.monotonic()):
                yield
        except TimeoutError:
            pending = "\n".join(self.history.pending_requests)
            raise InvariantViolated(
                f"requests without response {RECOVERY_TIMEOUT_SECONDS:.0f} s after the last fault:\n{pending}"
            ) from None

    async def _check_continuously(self, load_end: float) -> None:
        """Check the invariants that must hold at any time, and log the progress every ten seconds."""
        started_at, logged_at = time.monotonic(), time.monotonic()
        while time.monotonic() < load_end:
            await asyncio.sleep(0.5)
            self._raise_violations(self._continuous_violations())
            if time.monotonic() - logged_at > 10:
                logged_at = time.monotonic()
                self.log(f"{logged_at - started_at:5.1f} s  {self._progress()}")

    def _progress(self) -> str:
        finished = sum(each.finished for each in self.history.invocations.values())
        return (
            f"… {self.history.requests} requests, {self.history.retries} retries, {len(self.history.units)} units "
            f"requested, {len(self.history.invocations)} invocations, {finished} finished"
        )

    def _continuous_violations(self) -> Iterator[str]:
        yield from self.cluster_watch.violations
        yield from self.history.violations
        yield from stock_invariants.source_violations(self.history, self.pool)
        for operation in self.history.operations.values():
            yield from invariants.operation_id_violations(operation)
        for invocation in self.history.invocations.values():
            yield from (f"{invocation.id}: {each}" for each in invocation.violations)

    def _raise_violations(self, violations: Iterator[str]) -> None:
        if messages := list(violations):
            raise InvariantViolated("\n".join(messages))

    async def _wait_recovered(self, caller: RetryingApiClient, load_end: float) -> None:
        violations: list[str] = ["the invariants were not checked"]
        while violations:
            if time.monotonic() - load_end > RECOVERY_TIMEOUT_SECONDS:
                raise InvariantViolated(
                    f"not recovered {RECOVERY_TIMEOUT_SECONDS:.0f} s after the last fault:\n" + "\n".join(violations)
                )
            await asyncio.sleep(0.5)
            violations = await self._final_violations(caller)
        self.recovery_seconds = time.monotonic() - load_end
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
        """Return the violations of the invariants that must hold after the recovery."""
        if not_ready := await self.platform.not_ready():
            return [f"not ready: {each}" for each in not_ready]
        await self._read_unfinished(caller)
        if unfinished := [each.id for each in self.history.invocations.values() if not each.finished]:
            return [f"{each} has no result" for each in unfinished]
        try:
            snapshot = await self._take_snapshot()
        except API_SERVER_ERRORS as error:
            return [f"the API server: {error}"]
        return [
            *stock_invariants.stock_violations(snapshot, self.history, self.functions),
            *invariants.unfinished_operations(snapshot, (self.flavor, *self.functions)),
            *invariants.history_violations(snapshot, self.history),
            *invariants.convergence_violations(snapshot),
            *stock_invariants.pod_violations(snapshot, self.history),
            *stock_invariants.ownership_violations(snapshot),
            *stock_invariants.pool_violations(snapshot),
            *invariants.idle_violations(snapshot, self.functions, self._nats_was_full),
        ]

    @property
    def _nats_was_full(self) -> bool:
        return any((each.kind, each.target) == (FaultKind.FULL_DISK, "nats") for each in self.schedule)

    async def _read_unfinished(self, caller: RetryingApiClient) -> None:
        unfinished = [each for each in self.history.invocations.values() if not each.finished]
        await asyncio.gather(*(read_invocation(caller, each) for each in unfinished))

    def _result_violations(self) -> Iterator[str]:
        nats_had_a_fault = any(each.target == "nats" for each in self.schedule)
        for invocation in self.history.invocations.values():
            yield from invariants.result_violations(invocation, MAX_ATTEMPTS, replies_may_be_lost=nats_had_a_fault)

    async def _list_results(self, caller: RetryingApiClient, function: str) -> list[str]:
        invocation_ids: list[str] = []
        for state in TERMINAL_STATES:
            path, page = f"{INVOCATIONS_PATH}?serverlessRequestID={function}&state={state}&limit=500", ""
            while True:
                response, _ = await caller.request("GET", path + page, None, (200,))
                invocation_ids += [each["invocationID"] for each in response.body["data"]]
                if not (token := response.body.get("continue")):
                    break
                page = f"&continue={token}"
        return invocation_ids

    async def _take_snapshot(self) -> Snapshot:
        kinds: tuple[Any, ...] = (Pod, Deployment, ReplicaSet, Service)
        storages, pvcs, pools = await asyncio.gather(
            self.cluster_reader.list_objects(STORAGE, UNIT_NAMESPACE),
            self.cluster_reader.list_objects(PersistentVolumeClaim, UNIT_NAMESPACE),
            self.cluster_reader.list_objects(POOL, UNIT_NAMESPACE),
        )
        pods, deployments, replica_sets, services = [
            [
                each
                for namespace in (UNIT_NAMESPACE, STOCK_NAMESPACE)
                for each in await self.cluster_reader.list_objects(kind, namespace)
                if _is_managed(each)
            ]
            for kind in kinds
        ]
        by_name = {each["metadata"]["name"]: each for each in storages}
        streams = await self.platform.stream_backlogs()
        return Snapshot(
            await self.cluster_reader.snapshot(),
            storages=by_name,
            pods=pods,
            deployments=deployments,
            replica_sets=replica_sets,
            services=services,
            pvcs=pvcs,
            pools=pools,
            streams=streams,
        )

    async def _replay(self, caller: RetryingApiClient) -> None:
        """Send every request and read every result again. The responses must be consistent with the first ones."""
        for operation in [each for each in self.history.operations.values() if each.succeeded]:
            await caller.send_operation(operation)
            await caller.send_operation(operation, replicas=7) if operation.path == STOCK_UNITS_PATH else None
        for invocation in self.history.invocations.values():
            await read_invocation(caller, invocation)
        self._raise_violations(self._result_violations())
        self._raise_violations(self._continuous_violations())
        self._raise_violations(iter(await self._final_violations(caller)))

    async def _clean_up(self, caller: RetryingApiClient) -> None:
        """Delete all objects of the round: through the API if there is a route, otherwise with the Kubernetes API."""
        units, storages = (
            await self.cluster_reader.list_objects(UNIT, UNIT_NAMESPACE),
            await self.cluster_reader.list_objects(STORAGE, UNIT_NAMESPACE),
        )
        for unit in units:
            await caller.request("DELETE", f"{UNITS_PATH}/{unit['metadata']['name']}", None, (204, 404))
        await caller.request("DELETE", self._pool_path, None, (204, 404))
        for stock in await self.cluster_reader.list_objects(UNIT, STOCK_NAMESPACE):
            await self._delete_stock(stock["metadata"]["name"])
        for storage in storages:
            await self._delete_storage(caller, storage["metadata"]["name"])
        deleted_at, snapshot = time.monotonic(), await self._take_snapshot()
        while remaining := _remaining_objects(snapshot):
            if time.monotonic() - deleted_at > RECOVERY_TIMEOUT_SECONDS:
                raise InvariantViolated(
                    f"still there {RECOVERY_TIMEOUT_SECONDS:.0f} s after the deletion was requested: {remaining}"
                )
            await asyncio.sleep(0.5)
            snapshot = await self._take_snapshot()
        self.executions_path.unlink(missing_ok=True)
        await self._purge_streams(snapshot)

    async def _purge_streams(self, snapshot: Snapshot) -> None:
        """Purge messages that remain after a full disk and are never delivered, so the next round has empty streams."""
        remaining = [
            name for name, stream in snapshot.streams.items() if name in invariants.WORK_STREAMS and stream.messages
        ]
        if remaining:
            counts = ", ".join(f"{snapshot.streams[name].messages} in {name}" for name in remaining)
            self.log(f"        messages that remain after a full disk: {counts}")
            await self.platform.purge_streams(remaining)

    async def _delete_stock(self, name: str) -> None:
        try:
            await self.cluster_reader.kube.delete(UNIT, name, namespace=STOCK_NAMESPACE)
        except ApiError as error:
            if error.status.code != 404:
                raise

    async def _delete_storage(self, caller: RetryingApiClient, name: str) -> None:
        """Delete a storage. It is in use (409) until the pod of its unit is deleted."""
        for _ in range(round(RECOVERY_TIMEOUT_SECONDS)):
            response, _ = await caller.request("DELETE", f"/api/v1/gpu-storages/{name}", None, (204, 404, 409))
            if response.status != 409:
                return
            await asyncio.sleep(1)
        raise InvariantViolated(f"storage {name} is still attached to a deleted unit")

    async def _processes(self) -> list[ProcessStatus]:
        return await asyncio.to_thread(self.platform.processes.list)

    def _tracebacks(self) -> Iterator[str]:
        """Return the tracebacks in the logs of the product. A process logs a traceback for an unexpected error."""
        for log in self.platform.processes.logs.glob("*.log"):
            text = "" if log.name.startswith("framework") else log.read_text(errors="replace")
            if (at := text.find("Traceback")) >= 0:
                yield f"{log.name}: {text[max(0, at - 500) : at + 3000]}"

    async def save_artifacts(self, folder: Path) -> None:
        """Save the logs, the objects of the cluster, and the state of the streams."""
        for name, logs in self.platform.log_dirs.items():
            shutil.copytree(logs, folder / name, dirs_exist_ok=True)
        streams = await self.platform.get(self.platform.nats.monitor_port, JSZ_PATH)
        (folder / "streams.json").write_text(streams)
        with suppress(ProcessFailed):
            arguments = ("get", DUMPED_KINDS, "-A", "-o", "yaml")
            objects = await asyncio.to_thread(self.platform.control_plane.kubectl, *arguments)
            (folder / "objects.yaml").write_text(objects)


def function_manifest(name: str, executions: str) -> Object:
    serverless = {"enabled": True, "requestID": name, "maxWorkers": 2, "concurrency": 4, "idleTimeoutSeconds": 3}
    template = {"command": ["python", "-c"], "args": [FUNCTION_SOURCE.format(executions=executions)]}
    spec = {"specName": name, "image": "gpu-runtime:local", "memory": "1Gi", "gpu": 1, "running": False}
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "GPUUnit",
        "metadata": {"name": name, "namespace": UNIT_NAMESPACE},
        "spec": spec | {"serverless": serverless, "template": template},
    }


def pool_manifest(name: str, flavor: str) -> Object:
    spec = {"specName": flavor, "image": PREPARED_IMAGE, "memory": "1Gi", "gpu": 1, "replicas": POOL_REPLICAS}
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "StockPool",
        "metadata": {"name": name, "namespace": UNIT_NAMESPACE},
        "spec": spec | {"template": PREPARED_TEMPLATE, "adoptable": True},
    }


def _is_managed(item: Object) -> bool:
    return (item["metadata"].get("labels") or {}).get(Label.MANAGED_BY) == MANAGED_BY_VALUE


def _remaining_objects(snapshot: Snapshot) -> list[str]:
    kinds = (
        snapshot.cluster.units,
        snapshot.cluster.stock,
        snapshot.storages.values(),
        snapshot.pods,
        snapshot.deployments,
        snapshot.replica_sets,
        snapshot.pools,
        snapshot.pvcs,
    )
    return [each["metadata"]["name"] for kind in kinds for each in kind]
