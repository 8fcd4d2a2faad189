"""Several replicas that execute operations against an in-memory API server, in the order that a seed decides.

The simulation sends requests to several replicas at the same time. Meanwhile every replica runs recovery and retention,
the controller manager updates the status of stock and detaches storages, users delete units, pools, storages and stock,
and processes are killed. The checks at the end of this file are the promises of the operation protocol.

While requests are executed, time passes slowly, and recovery may find a slow request stalled. Retention relies on
MIN_AGE: no request is so slow. So the simulation makes operations old only between two rounds of requests. But recovery
may not have cleaned up after killed processes at that time.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec
from prometheus_client import CollectorRegistry

from gpu_runtime.contract.crd.gpu_storage import GPU_STORAGES, GPUStorage
from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS, GPUUnit
from gpu_runtime.contract.crd.operation import OPERATIONS, OperationType
from gpu_runtime.contract.crd.stock_pool import STOCK_POOLS
from gpu_runtime.contract.crd.well_known import Annotation, Label, operation_name
from gpu_runtime.contract.errors import NotFound, OperationReused, RuntimeFault
from gpu_runtime.contract.prepared_pods import unit_patch
from gpu_runtime.contract.prepared_units import prepared_unit
from gpu_runtime.contract.stock_grades import prepared_for
from gpu_runtime.controller_manager.gpu_storage.attachment import CheckOperation, DetachStorage
from gpu_runtime.controller_manager.gpu_storage.detach_check import confirm_step
from gpu_runtime.controller_manager.gpu_unit.adoption import is_claimed_for, takes_pod_for
from gpu_runtime.controller_manager.gpu_unit.observe import ObservedUnit
from gpu_runtime.controller_manager.settings import ControllerManagerSettings, ImageSettings
from gpu_runtime.kube.builtin_kinds import PODS
from gpu_runtime.kube.cache_staleness import CacheStaleness
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.codec import ListOptions
from gpu_runtime.kube.errors import KubeConflict, KubeError, KubeNotFound
from gpu_runtime.kube.meta import ApiResource, ObjectKey
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.process.background_queue import BackgroundQueue
from gpu_runtime.process.clock import format_timestamp
from gpu_runtime.runtime_api.api_informers import new_informers
from gpu_runtime.runtime_api.operations.drive import OperationDriver, OperationExecutor, OperationRunner
from gpu_runtime.runtime_api.operations.operation_retention import (
    MIN_AGE,
    OperationRetention,
    OperationRetentionMetrics,
)
from gpu_runtime.runtime_api.operations.operation_store import OperationStore
from gpu_runtime.runtime_api.operations.recovery import OperationRecovery
from gpu_runtime.runtime_api.operations.storage_attacher import StorageAttacher
from gpu_runtime.runtime_api.settings import APINamespaceSettings, OperationSettings
from gpu_runtime.runtime_api.stock.pools import PoolCreator, PoolService
from gpu_runtime.runtime_api.stock.requests import CreateStockPool, SeedStock
from gpu_runtime.runtime_api.stock.stock_admission import admit_pool
from gpu_runtime.runtime_api.stock.stock_returns import ReturnStock, StockReturnService
from gpu_runtime.runtime_api.stock.stock_seeder import StockSeeder
from gpu_runtime.runtime_api.stock.stock_units import StockUnitService
from gpu_runtime.runtime_api.units.handoff import Handoff
from gpu_runtime.runtime_api.units.requests import CreateUnit
from gpu_runtime.runtime_api.units.service import UnitService
from gpu_runtime.runtime_api.units.stock_selector import StockSelector
from gpu_runtime.runtime_api.units.unit_admission import admit_unit
from tests.unit.runtime_api.interleaved_kube import (
    Document,
    FakeClient,
    FakeKubeServer,
    InterleavingScheduler,
    run_interleaved,
)

REPLICAS = 3
STORAGES = ("data-0", "data-1", "data-2")
STOCK_NAMESPACE, UNIT_NAMESPACE, POOL_NAMESPACE = "runtime-stock", "runtime-instance", "default"
NAMESPACES = APINamespaceSettings(
    system="runtime-system", stock=STOCK_NAMESPACE, units=(UNIT_NAMESPACE,), pools=(POOL_NAMESPACE, UNIT_NAMESPACE)
)
SETTINGS = OperationSettings(retention_seconds=3600, max_retained=0)
"""Retention evicts every operation that it may evict."""
CONTROLLER_SETTINGS = ControllerManagerSettings(images=ImageSettings(stock="stock", placeholder="placeholder"))
ROUND_SECONDS = 200.0
"""The maximum time that passes while requests are executed. It is shorter than MIN_AGE."""
MAX_CALLER_ATTEMPTS = 12
"""How often a caller repeats a request whose operationID another caller uses."""

_UID = Annotation.OPERATION_UID

AnyRequest = CreateUnit | SeedStock | CreateStockPool
Delete = Callable[[str, str], Awaitable[None]]
"""Deletes the object with this namespace and name."""


class ManualClock:
    """A clock that changes only when a test advances it. A sleeping task waits until the scheduler continues it."""

    def __init__(self, scheduler: InterleavingScheduler) -> None:
        self._scheduler = scheduler
        self.elapsed_seconds = 0.0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.elapsed_seconds)

    def monotonic(self) -> float:
        return self.elapsed_seconds

    async def sleep(self, _seconds: float) -> None:
        await self._scheduler.wait_scheduled("sleep")


@dataclass
class OperationReplica:
    """The parts of a runtime API that execute operations, with their own client."""

    server: FakeKubeServer
    scheduler: InterleavingScheduler
    name: str
    clock: ManualClock
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    client: FakeClient = field(init=False)
    deleter_task: asyncio.Task[None] = field(init=False)
    passes: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """The last pass of recovery and of retention."""

    def __post_init__(self) -> None:
        self.client = FakeClient(self.server, self.scheduler, self.name)
        client = cast(KubeClient, self.client)
        informers = new_informers(client, NAMESPACES, KubeMetrics())
        driver = OperationDriver(OperationStore(client, NAMESPACES.system, self.clock), self.clock)
        attacher, deletions = StorageAttacher(client, informers), BackgroundQueue()
        selector = StockSelector(informers, driver.store)
        self.handoff = Handoff(client, informers, driver, selector, attacher, deletions=deletions, deletion_delay=0)
        executors: dict[OperationType, OperationExecutor] = {
            OperationType.CREATE_UNIT: self.handoff,
            OperationType.SEED_STOCK: StockSeeder(client, informers, driver),
            OperationType.CREATE_STOCK_POOL: PoolCreator(client, informers, driver),
        }
        self.operations = OperationRunner(driver.store, executors, BackgroundQueue())
        self.recovery = OperationRecovery(client, informers, self.operations, settings=SETTINGS, clock=self.clock)
        self.retention = OperationRetention(
            client=client,
            informers=informers,
            stale_reason=CacheStaleness(informers.all).reason,
            namespace=NAMESPACES.system,
            settings=SETTINGS,
            clock=self.clock,
            metrics=OperationRetentionMetrics(CollectorRegistry()),
        )
        self.units = UnitService(client, informers, NAMESPACES, self.handoff, self.operations, attacher)
        self.stock = StockUnitService(client, informers, self.operations, STOCK_NAMESPACE)
        self.stock_returns = StockReturnService(client, informers, self.operations, STOCK_NAMESPACE)
        self.pools = PoolService(client, informers, self.operations, NAMESPACES)
        self.informer_tasks = {informer: asyncio.create_task(informer.run()) for informer in informers.all}
        self.operations_informer = informers.unfinished_operations
        self.tasks += self.informer_tasks.values()
        self.deleter_task = asyncio.create_task(deletions.run(asyncio.Event(), grace_seconds=0))
        self.tasks += [self.deleter_task, asyncio.create_task(self.operations.queue.run(asyncio.Event(), 0))]

    def start_pass(self, name: str, run_once: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start a pass of recovery or retention, unless one is in progress."""
        if name not in self.passes or self.passes[name].done():
            self.passes[name] = asyncio.create_task(run_once())
            self.tasks.append(self.passes[name])

    def stop_deleting(self) -> None:
        """Behave, as far as consumed stock is concerned, like a replica that is killed right after its response."""
        self.deleter_task.cancel()

    def stop_watching_operations(self) -> None:
        """Behave like a replica whose watch of operations hangs: its cache becomes stale."""
        self.informer_tasks[self.operations_informer].cancel()

    def kill(self) -> None:
        for task in self.tasks:
            task.cancel()


@dataclass
class FakeController:
    """A part of the controller manager that checks all objects in passes."""

    client: FakeClient
    task: asyncio.Task[None] | None = None

    def start_pass(self) -> None:
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self.run_once())

    def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()

    async def run_once(self) -> None:
        raise NotImplementedError


class StorageDetacher(FakeController):
    """The part of the controller manager that detaches storages and removes deleted ones."""

    async def run_once(self) -> None:
        for storage in (await self.client.list(GPU_STORAGES, ListOptions(UNIT_NAMESPACE))).items:
            with suppress(KubeConflict, KubeNotFound):
                await self._check(storage)

    async def _check(self, storage: GPUStorage) -> None:
        metadata, attached = storage.metadata, storage.spec.attached_to
        if attached is None:
            if metadata.deletion_timestamp is not None:
                await self.client.remove(GPU_STORAGES, metadata.key, metadata.resource_version)
            return
        check = CheckOperation(attached)
        client = cast(KubeClient, self.client)
        if isinstance(await confirm_step(client, metadata.key, check, NAMESPACES.system), DetachStorage):
            detached: Document = {"spec": {"attachedTo": None}}
            await self.client.merge_patch(
                GPU_STORAGES, metadata.key, detached, resource_version=metadata.resource_version
            )


class FakePodAdopter(FakeController):
    """The part of the controller manager, and of Kubernetes, that makes a claimed pod the pod of its unit."""

    async def run_once(self) -> None:
        for unit in (await self.client.list(GPU_UNITS, ListOptions(UNIT_NAMESPACE))).items:
            if unit.metadata.annotations.get(Annotation.SOURCE_STOCK_POOL):
                with suppress(KubeConflict, KubeNotFound):
                    await self._adopt(unit)

    async def _adopt(self, unit: GPUUnit) -> None:
        annotations = unit.metadata.annotations
        pod = await self.client.get(PODS, ObjectKey(UNIT_NAMESPACE, annotations[Annotation.SOURCE_STOCK_NAME]))
        key = ObjectKey(NAMESPACES.system, operation_name(annotations[Annotation.OPERATION_ID]))
        operation = await self.client.get(OPERATIONS, key)
        observed = ObservedUnit(unit=unit, settings=CONTROLLER_SETTINGS, now=datetime.now(UTC))
        if not is_claimed_for(observed, pod) or not takes_pod_for(operation, unit, pod):
            return
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": True}
        taken = unit_patch({Label.UNIT_UID: unit.metadata.uid})
        taken["metadata"]["ownerReferences"] = [owner]
        version = pod.metadata.resource_version
        await self.client.merge_patch(PODS, pod.metadata.key, taken, resource_version=version)


@dataclass(frozen=True)
class Chaos:
    """How many faults of each kind happen during a run."""

    kills: int = 0
    deletions: int = 0
    """Units that users delete."""
    unit_requests: int = 0
    """Requests that delete a unit."""
    pool_requests: int = 0
    """Requests that delete a pool."""
    returns: int = 0
    """Workers whose stock is returned. Each request is sent to two replicas."""
    full_queues: int = 0
    """Replicas that delete no consumed stock any more."""
    stock_deletions: int = 0
    """Stock units that users delete, if possible claimed ones."""
    outages: int = 0
    """Replicas whose requests to the API server often fail until the end of the round, or until they are killed."""
    pod_deletions: int = 0
    """Prepared or claimed pods that are deleted, for example because their node is lost."""
    storage_changes: int = 0
    """Storages that users delete or create again."""
    background: bool = True
    """Whether time passes, and the replicas run recovery and retention."""
    fault_chance: float = 0.02
    """The probability of a fault before each step of a task."""
    phases: Sequence[str] = ("Ready",)
    """Phases that the controller reports for stock."""


@dataclass
class OperationSimulation:
    seed: int
    stock: int
    requests: Sequence[AnyRequest]
    initial_phase: str = "Ready"
    """The phase of the initial stock."""
    pool: CreateStockPool | None = None
    """An adoptable pool that exists before the requests, with its pods."""
    replica_count: int = REPLICAS
    recovery_chance: float = 0.0
    """The probability of a recovery pass before each step. Every round has another one."""
    server: FakeKubeServer = field(default_factory=FakeKubeServer)
    outcomes: list[tuple[str, object]] = field(default_factory=list)
    """For each response: its operationID, and whether it created the unit (201) or the type of the fault."""
    mistaken: list[tuple[CreateUnit, str]] = field(default_factory=list)
    """Requests whose response contained another unit than the requested one, with the name of that unit."""
    deleted: set[str] = field(default_factory=set)
    """UIDs of units that a user has deleted."""
    deleted_names: set[str] = field(default_factory=set)
    """Names for which a delete request was sent. It deletes the unit or pool that has the name when it is executed."""
    removed: dict[str, Document] = field(default_factory=dict)
    """Units and pools whose delete request succeeded, by UID."""

    def __post_init__(self) -> None:
        self.scheduler = InterleavingScheduler(self.seed)
        self.clock = ManualClock(self.scheduler)
        self.server.now = lambda: format_timestamp(self.clock.now())
        self.controller = StorageDetacher(FakeClient(self.server, self.scheduler, "controller"))
        for index in range(self.stock):
            self.add_stock(f"stock-{index}")
        self.initial_stock = {each["metadata"]["uid"] for each in self.server.all(GPU_UNITS)}
        for name in STORAGES:
            self.add_storage(name)
        self.adopter = FakePodAdopter(FakeClient(self.server, self.scheduler, "adopter"))
        if self.pool is not None:
            self.add_pool(self.pool)
        self.replicas = [self._replica(f"replica-{index}") for index in range(self.replica_count)]

    def add_stock(self, name: str) -> None:
        manifest: Document = {"metadata": {"name": name, "namespace": STOCK_NAMESPACE}, "spec": {"specName": "g1.1"}}
        self.server.create(GPU_UNITS, manifest)
        self.server.patch(
            GPU_UNITS, ObjectKey(STOCK_NAMESPACE, name), {"status": {"phase": self.initial_phase}}, "status"
        )

    def add_pool(self, request: CreateStockPool) -> None:
        spec = admit_pool(request, NAMESPACES).pool_spec()
        metadata = {"name": request.name, "namespace": UNIT_NAMESPACE}
        pool = self.server.create(STOCK_POOLS, {"metadata": metadata, "spec": msgspec.to_builtins(spec)})
        labels = {Label.MANAGED_BY: "gpu-runtime", Label.PREPARED: "true", Label.POOL: request.name}
        labels |= {Label.POOL_UID: pool["metadata"]["uid"]}
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "p", "uid": "p", "controller": True}
        annotations = {Annotation.PREPARED_FOR: prepared_for(prepared_unit(spec))}
        for index in range(request.replicas):
            pod: Document = {"name": f"warm-{index}", "namespace": UNIT_NAMESPACE, "labels": labels}
            pod |= {"annotations": annotations, "ownerReferences": [owner]}
            self.server.create(PODS, {"metadata": pod, "spec": {}})
            self.report_pod(f"warm-{index}", "True")

    def report_pod(self, name: str, ready: str) -> None:
        """Update the status of a pod, as the kubelet does. That changes the resourceVersion that claims depend on."""
        conditions = [{"type": "Ready", "status": ready, "message": str(self.server.version)}]
        self.server.patch(PODS, ObjectKey(UNIT_NAMESPACE, name), {"status": {"conditions": conditions}}, "status")

    def report_on_pods(self) -> None:
        names = [pod["metadata"]["name"] for pod in self.server.all(PODS)]
        if names:
            self.report_pod(self.scheduler.rng.choice(names), self.scheduler.rng.choice(("True", "True", "False")))

    def delete_pod(self) -> None:
        pods = self.server.all(PODS)
        claimed = [each for each in pods if Annotation.CLAIMED_BY in _annotations(each)]
        if pods:
            metadata = self.scheduler.rng.choice(claimed or pods)["metadata"]
            self.server.delete(PODS, ObjectKey(UNIT_NAMESPACE, metadata["name"]), metadata["uid"])
            self.deleted.add(metadata["uid"])

    def add_storage(self, name: str) -> None:
        metadata = {"name": name, "namespace": UNIT_NAMESPACE, "finalizers": ["attached"]}
        self.server.create(GPU_STORAGES, {"metadata": metadata, "spec": {"size": "1Gi"}})

    def _replica(self, name: str) -> OperationReplica:
        return OperationReplica(self.server, self.scheduler, name, self.clock)

    async def send(self, replica: OperationReplica, request: AnyRequest) -> None:
        """Send the request. If another caller uses its operationID, send it again later, a limited number of times."""
        for _ in range(MAX_CALLER_ATTEMPTS):
            outcome: object
            try:
                outcome = await self._execute(replica, request)
            except OperationReused:
                await self.scheduler.wait_scheduled("caller")
                continue
            except (RuntimeFault, KubeError) as fault:
                outcome = type(fault)
            self.outcomes.append((request.operation_id, outcome))
            return

    async def _execute(self, replica: OperationReplica, request: AnyRequest) -> bool:
        match request:
            case CreateUnit():
                unit, created = await replica.handoff.create(admit_unit(request, NAMESPACES))
                if (unit.metadata.name, unit.spec.image) != (request.name, request.image):
                    self.mistaken.append((request, unit.metadata.name))
                return created
            case SeedStock():
                return (await replica.stock.seed(request)).new
            case CreateStockPool():
                return (await replica.pools.create(request)).new

    def report_on_stock(self, phases: Sequence[str]) -> None:
        """Update the status of a stock unit, as the controller does. That changes the resourceVersion that claims
        depend on."""
        names = [unit["metadata"]["name"] for unit in self.list_units(STOCK_NAMESPACE)]
        if names:
            self.report_phase(self.scheduler.rng.choice(names), self.scheduler.rng.choice(phases))

    def report_phase(self, name: str, phase: str) -> None:
        status = {"status": {"phase": phase, "lastSyncTime": str(self.server.version)}}
        self.server.patch(GPU_UNITS, ObjectKey(STOCK_NAMESPACE, name), status, "status")

    def delete_a_unit(self) -> None:
        """Delete a unit, as a user does. That may happen before the response to the create is sent."""
        units = self.list_units(UNIT_NAMESPACE)
        if units:
            metadata = self.scheduler.rng.choice(units)["metadata"]
            self.server.delete(GPU_UNITS, ObjectKey(UNIT_NAMESPACE, metadata["name"]), metadata["uid"])
            self.deleted.add(metadata["uid"])

    def request_unit_deletion(self) -> None:
        self._request_deletion(self.list_units(UNIT_NAMESPACE), lambda replica: replica.units.delete)

    def request_pool_deletion(self) -> None:
        self._request_deletion(self.server.all(STOCK_POOLS), lambda replica: replica.pools.delete)

    def request_return(self) -> None:
        """Return the stock of a worker, as two leading activators do. They may have seen a worker that is deleted."""
        units = [each for _, plural, each, _ in self.server.history if plural == GPU_UNITS.plural]
        workers = [each for each in units if each["spec"].get("serverless")]
        if workers:
            worker, rng = self.scheduler.rng.choice(workers), self.scheduler.rng
            returned = ReturnStock(
                operation_id=_annotations(worker)[Annotation.OPERATION_ID], unit_uid=worker["metadata"]["uid"]
            )
            for replica in rng.choices(self.replicas, k=2):
                replica.tasks.append(asyncio.create_task(self._return(replica, returned)))

    async def _return(self, replica: OperationReplica, returned: ReturnStock) -> None:
        with suppress(RuntimeFault, KubeError):
            await replica.stock_returns.return_stock(returned)

    def _request_deletion(self, objects: list[Document], delete_of: Callable[[OperationReplica], Delete]) -> None:
        """Send a delete request for one of the objects. It finishes the operation of the object first."""
        if objects:
            found, replica = self.scheduler.rng.choice(objects), self.scheduler.rng.choice(self.replicas)
            self.deleted_names.add(found["metadata"]["name"])
            replica.tasks.append(asyncio.create_task(self._delete(found, delete_of(replica))))

    async def _delete(self, found: Document, delete: Delete) -> None:
        metadata = found["metadata"]
        try:
            await delete(metadata["namespace"], metadata["name"])
        except NotFound:
            return
        except (RuntimeFault, KubeError) as fault:
            self.outcomes.append((f"delete {metadata['name']}", type(fault)))
        else:
            self.removed[metadata["uid"]] = found

    def delete_stock(self) -> None:
        """Delete a stock unit, as an administrator does. A claimed one is preferred."""
        units = self.list_units()
        claimed = [each for each in units if Annotation.CLAIMED_BY in _annotations(each)]
        if units:
            metadata = self.scheduler.rng.choice(claimed or units)["metadata"]
            self.server.delete(GPU_UNITS, ObjectKey(STOCK_NAMESPACE, metadata["name"]), metadata["uid"])
            self.deleted.add(metadata["uid"])

    def change_storages(self) -> None:
        """Delete a storage, as a user does, or create a deleted one again."""
        name = self.scheduler.rng.choice(STORAGES)
        key = ObjectKey(UNIT_NAMESPACE, name)
        if self.server.find(GPU_STORAGES, key):
            self.server.delete(GPU_STORAGES, key, None)
        else:
            self.add_storage(name)

    def start_outage(self) -> None:
        self.scheduler.rng.choice(self.replicas).client.failure_chance = 0.4

    def fill_queue(self) -> None:
        self.scheduler.rng.choice(self.replicas).stop_deleting()

    def list_units(self, namespace: str = STOCK_NAMESPACE) -> list[Document]:
        return [each for each in self.server.all(GPU_UNITS) if each["metadata"]["namespace"] == namespace]

    async def run(self, chaos: Chaos) -> None:
        """Send every request to several replicas at the same time, and inject the faults at random moments."""
        for request in self.requests:
            for replica in self.scheduler.rng.sample(self.replicas, self.scheduler.rng.randint(1, self.replica_count)):
                replica.tasks.append(asyncio.create_task(self.send(replica, request)))
        faults: list[Callable[[], None]] = [
            *[self._kill_one] * chaos.kills,
            *[self.delete_a_unit] * chaos.deletions,
            *[self.request_unit_deletion] * chaos.unit_requests,
            *[self.request_pool_deletion] * chaos.pool_requests,
            *[self.request_return] * chaos.returns,
            *[self.fill_queue] * chaos.full_queues,
            *[self.delete_stock] * chaos.stock_deletions,
            *[self.change_storages] * chaos.storage_changes,
            *[self.start_outage] * chaos.outages,
            *[self.delete_pod] * chaos.pod_deletions,
        ]
        self.scheduler.rng.shuffle(faults)
        end = self.clock.elapsed_seconds + ROUND_SECONDS
        self.recovery_chance = self.scheduler.rng.choice((0.0, 0.03, 0.1))
        for _ in range(4000):
            chance = self.scheduler.rng.random()
            if faults and chance < chaos.fault_chance:
                faults.pop()()
            elif chance > 0.9:
                self.report_on_stock(chaos.phases)
                self.report_on_pods()
            if chaos.background:
                self._run_background(end)
            if await self.scheduler.run_next() is None:
                break
        await self.run_until_idle()
        for replica in self.replicas:
            replica.client.failure_chance = 0.0

    def _run_background(self, end: float) -> None:
        """Let a short time pass, and start what runs in the background at random moments."""
        rng = self.scheduler.rng
        self.clock.elapsed_seconds = min(end, self.clock.elapsed_seconds + rng.random())
        replica, event = rng.choice(self.replicas), rng.random()
        if event < self.recovery_chance:
            replica.start_pass("recovery", replica.recovery.run_once)
        elif event > 0.95:
            replica.start_pass("retention", replica.retention.run_once)
        elif event > 0.9:
            self.controller.start_pass()
        elif event > 0.85:
            self.adopter.start_pass()

    async def grow_old(self) -> None:
        """Let so much time pass that retention may evict all operations that need no cleanup."""
        await self.run_until_idle()
        self.clock.elapsed_seconds += self.scheduler.rng.choice((1, 10)) * MIN_AGE.total_seconds()

    def _kill_one(self) -> None:
        index = self.scheduler.rng.randrange(self.replica_count)
        self.replicas[index].kill()
        self.replicas[index] = self._replica(f"replica-{index}-{self.server.version}")

    async def run_recovery(self) -> None:
        """Let all requests finish, make all stock Ready, advance the clock and run recovery on all replicas."""
        await self.run_until_idle()
        for unit in self.list_units():
            self.report_phase(unit["metadata"]["name"], "Ready")
        for pod in self.server.all(PODS):
            self.report_pod(pod["metadata"]["name"], "True")
        for _ in range(4):
            self.clock.elapsed_seconds += 10
            for replica in self.replicas:
                await run_interleaved(replica.recovery.run_once(), self.scheduler)
            await run_interleaved(self.controller.run_once(), self.scheduler)
            await run_interleaved(self.adopter.run_once(), self.scheduler)
        await self.run_until_idle()

    async def run_until_idle(self) -> None:
        """Run until all caches are up to date and consumed stock is deleted."""
        while await self.scheduler.run_next():
            pass

    async def replay(self) -> None:
        await self.run_until_idle()
        for request in self.requests:
            await self.complete(self.send(self.scheduler.rng.choice(self.replicas), request))

    async def complete(self, work: Awaitable[None]) -> None:
        await run_interleaved(work, self.scheduler)

    def recorded_operations(self) -> list[Document]:
        """The last state of all operations, also of those that were evicted."""
        plural = OPERATIONS.plural
        return list(
            {each["metadata"]["uid"]: each for _, kind, each, _ in self.server.history if kind == plural}.values()
        )

    def operations(self, kind: OperationType, state: str) -> list[Document]:
        of_kind = [each for each in self.recorded_operations() if each["spec"]["type"] == kind.value]
        return [each for each in of_kind if each.get("status", {}).get("state") == state]

    def end(self) -> None:
        self.controller.stop()
        self.adopter.stop()
        for replica in self.replicas:
            replica.kill()


@contextmanager
def operation_simulation(
    seed: int, stock: int, requests: Sequence[AnyRequest], **fields: Any
) -> Iterator[OperationSimulation]:
    """Yield a simulation. `fields` are further fields of OperationSimulation."""
    random.seed(seed)
    simulation = OperationSimulation(seed, stock, requests, **fields)
    try:
        yield simulation
    finally:
        simulation.end()


def check_conservation(simulation: OperationSimulation) -> None:
    """Every stock unit exists, or became exactly one unit, or was deleted by a user. Every unit belongs to one
    operation."""
    succeeded = simulation.operations(OperationType.CREATE_UNIT, "Succeeded")
    consumed = Counter(each["status"]["stock"]["uid"] for each in succeeded)
    remaining = _uids(simulation.list_units())
    assert all(count == 1 for count in consumed.values()), "two operations consumed the same stock"
    consumed = Counter(each["status"]["stock"]["uid"] for each in succeeded if not _pool_of(each))
    assert remaining.isdisjoint(consumed), "a consumed stock unit still exists"
    seeded = simulation.initial_stock | _check_seedings(simulation)
    assert remaining | consumed.keys() | (simulation.deleted & seeded) == seeded, (
        "a stock unit was lost, or one exists that no seeding committed to"
    )
    claimed = [each for each in simulation.list_units() if Annotation.CLAIMED_BY in _annotations(each)]
    assert not claimed, "a stock unit is claimed although no handoff is in progress"
    _check_committed(simulation, UNIT_NAMESPACE, GPU_UNITS, succeeded)
    _check_requested(simulation, succeeded)
    _check_storages(simulation)
    _check_responses(simulation)


def check_prepared_pods(simulation: OperationSimulation) -> None:
    """Every pod is in the pool, or belongs to the one unit whose operation took it. No claimed pod is left over."""
    succeeded = simulation.operations(OperationType.CREATE_UNIT, "Succeeded")
    taken = {each["status"]["stock"]["uid"]: each["status"]["targetUID"] for each in succeeded if _pool_of(each)}
    units = _uids(simulation.list_units(UNIT_NAMESPACE))
    for pod in simulation.server.all(PODS):
        labels, uid = pod["metadata"]["labels"], pod["metadata"]["uid"]
        if Annotation.CLAIMED_BY not in _annotations(pod):
            assert Label.POOL_UID in labels, "a pod without a claim is not in its pool"
            assert uid not in taken, "a pod is in the pool although an operation took it"
        elif taken.get(uid) in units:
            assert labels.get(Label.UNIT_UID) == taken[uid], "a pod does not belong to the unit that took it"
        else:
            assert labels.get(Label.UNIT_UID) in simulation.deleted | simulation.removed.keys(), "a claimed pod is left"


def _pool_of(operation: Document) -> str:
    return str(operation["status"]["stock"].get("pool", ""))


def check_pools(simulation: OperationSimulation) -> None:
    """Every pool belongs to one succeeded operation, and a failed operation left no pool."""
    succeeded = simulation.operations(OperationType.CREATE_STOCK_POOL, "Succeeded")
    _check_committed(simulation, POOL_NAMESPACE, STOCK_POOLS, succeeded)


def check_finished(simulation: OperationSimulation) -> None:
    """Recovery finishes every operation except those that wait for stock."""
    unfinished = [each for each in simulation.server.all(OPERATIONS) if each["spec"]["type"] != "CreateUnit"]
    states = {each.get("status", {}).get("state") for each in unfinished}
    assert states <= {"Succeeded", "Failed"}, f"operations are still in state {states}"


def _check_seedings(simulation: OperationSimulation) -> set[str]:
    """Return the UIDs of all seeded stock. Every seeding created all of its stock units, or none."""
    seeded: set[str] = set()
    _check_returns(simulation)
    for operation in simulation.operations(OperationType.SEED_STOCK, "Succeeded"):
        uids = operation["status"]["stockUIDs"]
        request = msgspec.json.decode(operation["spec"]["request"])
        assert len(set(uids)) == request["replicas"], "a succeeded seeding has another number of stock units"
        assert seeded.isdisjoint(uids), "two seedings committed to the same stock unit"
        seeded.update(uids)
    for operation in simulation.operations(OperationType.SEED_STOCK, "Failed"):
        assert not operation["status"].get("stockUIDs"), "a failed seeding lists stock units"
    return seeded


def _check_returns(simulation: OperationSimulation) -> None:
    """Every worker whose stock is returned was created from stock, is returned once and does not exist any more."""
    created = {each["status"]["targetUID"] for each in simulation.operations(OperationType.CREATE_UNIT, "Succeeded")}
    returned = _returned_uids(simulation)
    assert len(returned) == len(set(returned)), "the stock of one worker was returned twice"
    assert created.issuperset(returned), "stock was returned for a unit that no operation committed to"
    assert _uids(simulation.list_units(UNIT_NAMESPACE)).isdisjoint(returned), "a worker and its returned stock exist"


def _returned_uids(simulation: OperationSimulation) -> list[str]:
    seedings = simulation.operations(OperationType.SEED_STOCK, "Succeeded")
    requests = [msgspec.json.decode(each["spec"]["request"]) for each in seedings]
    return [each["returnedFrom"]["uid"] for each in requests if "returnedFrom" in each]


def _check_committed(
    simulation: OperationSimulation, namespace: str, resource: ApiResource[Any], succeeded: list[Document]
) -> None:
    committed = {each["status"]["targetUID"]: each["spec"]["target"]["name"] for each in succeeded}
    existing = _uids(each for each in simulation.server.all(resource) if each["metadata"]["namespace"] == namespace)
    assert existing <= committed.keys(), f"a {resource.kind} exists that no operation committed to"
    missing = {uid for uid, name in committed.items() if uid not in existing and name not in simulation.deleted_names}
    gone = simulation.deleted.union(_returned_uids(simulation))
    assert missing <= gone, f"a {resource.kind} is missing that no user deleted"
    removed = set(map(_attempt, simulation.removed.values()))
    again = [each for each in simulation.server.all(resource) if _attempt(each) in removed - {(None, None)}]
    assert not again, f"an attempt created a {resource.kind} again after a request had deleted it"


def _check_requested(simulation: OperationSimulation, succeeded: list[Document]) -> None:
    """Every unit has the name, the image and the storages of the request of its operation."""
    requests = {each["status"]["targetUID"]: _request(each) for each in succeeded}
    for unit in simulation.list_units(UNIT_NAMESPACE):
        request = requests[unit["metadata"]["uid"]]
        found = unit["metadata"]["name"], unit["spec"]["image"], _mounted_names(unit["spec"])
        assert found == (request["name"], request["image"], _mounted_names(request)), (
            "a unit is not what the request of its operation demands"
        )


def _request(operation: Document) -> Document:
    """The recorded request. An operation that was recorded without stock has it in its status."""
    recorded = operation["spec"].get("request") or operation["status"]["request"]
    return cast(Document, msgspec.json.decode(recorded))


def _mounted_names(spec: Document) -> list[str]:
    return [mount["name"] for mount in spec.get("storageMounts", ())]


def _check_storages(simulation: OperationSimulation) -> None:
    """Every mounted storage is attached to the unit that mounts it, and every other storage is free."""
    storages = simulation.server.all(GPU_STORAGES)
    attachments = {each["metadata"]["name"]: each["spec"].get("attachedTo") for each in storages}
    mounted: set[str] = set()
    for unit in simulation.list_units(UNIT_NAMESPACE):
        for name in _mounted_names(unit["spec"]):
            attachment = attachments.get(name)
            assert attachment, "a unit mounts a storage that is not attached to it"
            assert attachment["unit"] == unit["metadata"]["name"], "a unit mounts a storage of another unit"
            mounted.add(name)
    orphans = {name for name, each in attachments.items() if each} - mounted
    assert not orphans, "a storage is attached for an operation that created no unit"


def _check_responses(simulation: OperationSimulation) -> None:
    assert not simulation.mistaken, "a caller received the unit of another caller"
    recorded = Counter(each["spec"]["operationID"] for each in simulation.recorded_operations())
    creations = Counter(operation for operation, outcome in simulation.outcomes if outcome is True)
    assert creations <= recorded, "two responses reported the creation of one object"


def _uids(documents: Any) -> set[str]:
    return {each["metadata"]["uid"] for each in documents}


def _attempt(document: Document) -> tuple[str | None, str | None]:
    """The UID of the operation that created the object, and the number of its attempt."""
    annotations = _annotations(document)
    return annotations.get(_UID), annotations.get(Annotation.OPERATION_ATTEMPT)


def _annotations(document: Document) -> Document:
    return cast(Document, document["metadata"].get("annotations", {}))
