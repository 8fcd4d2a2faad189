"""Entry point of the controller manager: builds informers, controllers, leader election, health server and metrics."""

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import TypeVar

from gpu_runtime.contract.crd.gpu_storage import GPUStorage
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.stock_pool import StockPool
from gpu_runtime.contract.crd.well_known import Label
from gpu_runtime.contract.prepared_units import is_adoptable
from gpu_runtime.controller_manager.controller_informers import ControllerInformers, new_informers
from gpu_runtime.controller_manager.function_queues import FunctionQueues
from gpu_runtime.controller_manager.gpu_storage.gpu_storage_mappers import GPUStorageMappers
from gpu_runtime.controller_manager.gpu_storage.reconcile import GPUStorageReconciler
from gpu_runtime.controller_manager.gpu_unit.adoption import PodAdopter
from gpu_runtime.controller_manager.gpu_unit.gpu_unit_mappers import GPUUnitMappers
from gpu_runtime.controller_manager.gpu_unit.lifetime import UnitLifetimes
from gpu_runtime.controller_manager.gpu_unit.reconcile import GPUUnitReconciler
from gpu_runtime.controller_manager.gpu_unit.stock_releaser import StockReleaser
from gpu_runtime.controller_manager.indexes import waiting_for_gpus
from gpu_runtime.controller_manager.metrics import UnitMetrics
from gpu_runtime.controller_manager.orphan_collector import OrphanCollector
from gpu_runtime.controller_manager.settings import ControllerManagerSettings
from gpu_runtime.controller_manager.stock_pool.reconcile import StockPoolReconciler
from gpu_runtime.controller_manager.storage_locks import StorageLocks
from gpu_runtime.controller_manager.unstructured import RawNetworkPolicy
from gpu_runtime.controller_manager.workload.namespace_isolation import is_isolation_policy
from gpu_runtime.controller_manager.workload.status_writer import StatusWriter
from gpu_runtime.kube.builtin_kinds import Pod
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.controller import Controller, ControllerOptions
from gpu_runtime.kube.informer import Informer
from gpu_runtime.kube.manager import Manager
from gpu_runtime.kube.meta import KubeObject, ObjectKey
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.process.health_server import serve_health
from gpu_runtime.process.kubernetes import connect_kubernetes, new_candidate
from gpu_runtime.process.metrics import new_registry
from gpu_runtime.process.runner import run_process

PROCESS_NAME = "controller-manager"
T = TypeVar("T", bound=KubeObject)


def main(config: Path) -> int:
    return run_process(config, ControllerManagerSettings, run_controller_manager)


async def run_controller_manager(settings: ControllerManagerSettings, stopping: asyncio.Event) -> None:
    """Run the controllers until `stopping` is set.

    While another replica is the leader, this process keeps its informers synced and reconciles nothing.
    """
    metrics = KubeMetrics(new_registry(PROCESS_NAME))
    async with connect_kubernetes(settings.kubernetes, PROCESS_NAME, metrics) as client:
        manager = new_manager(client, settings, metrics)
        checks = {"caches": lambda: None if manager.has_synced else "the informer caches have not synced yet"}
        async with serve_health(settings.health, metrics.registry, stopping, checks):
            await manager.run(stopping)


def new_manager(client: KubeClient, settings: ControllerManagerSettings, metrics: KubeMetrics) -> Manager:
    """Create the controllers. If leader election is enabled, a write fails after this process has lost leadership."""
    candidate = new_candidate(client, PROCESS_NAME, settings.namespaces.system, settings.leader_election, metrics)
    writer = candidate.client
    informers = new_informers(client, metrics, settings.resync_seconds, settings.namespaces.system)
    informers.units.add_event_handler(UnitMetrics(metrics.registry, settings.namespaces.stock).observe_change)
    status_writer, storage_locks = StatusWriter(writer, candidate.recorder), StorageLocks()
    lifetimes = UnitLifetimes(writer, informers, status_writer, settings)
    adopter = PodAdopter(writer, informers, settings.namespaces.system)
    releaser = StockReleaser(writer, settings.namespaces.system)
    queues = FunctionQueues(writer, informers, settings.namespaces.system, settings.namespaces.stock)
    units = GPUUnitReconciler(
        writer, informers, status_writer, settings, storage_locks, lifetimes, adopter, releaser, queues
    )
    storages = GPUStorageReconciler(writer, informers, status_writer, settings, storage_locks)
    pools = StockPoolReconciler(writer, informers, status_writer, settings)
    unit_options, storage_options, pool_options = (
        ControllerOptions(max_concurrent_reconciles=each)
        for each in (
            settings.max_concurrent_reconciles.gpu_units,
            settings.max_concurrent_reconciles.gpu_storages,
            settings.max_concurrent_reconciles.stock_pools,
        )
    )
    unit_controller = Controller("gpu-unit", informers.units, units.reconcile, unit_options, metrics)
    storage_controller = Controller("gpu-storage", informers.storages, storages.reconcile, storage_options, metrics)
    pool_controller = Controller("stock-pool", informers.pools, pools.reconcile, pool_options, metrics)
    queue_controller = Controller("function-queue", informers.queues, queues.reconcile, unit_options, metrics)
    queue_controller.watches(informers.units, queues.map_unit)
    _watch_for_units(unit_controller, informers)
    _watch_for_storages(storage_controller, informers)
    _watch_for_pools(pool_controller, informers)
    collector = OrphanCollector(writer, informers, time.monotonic)
    runnables = (unit_controller, storage_controller, pool_controller, queue_controller, collector)
    shutdown_timeout = settings.graceful_shutdown_timeout_seconds
    return Manager(informers.all, runnables, candidate.elector, candidate.recorder, shutdown_timeout)


def _watch_for_units(controller: Controller[GPUUnit], informers: ControllerInformers) -> None:
    mappers = GPUUnitMappers(informers.units.store)
    controller.owns(informers.deployments)
    controller.owns(informers.services)
    controller.owns(informers.network_policies)
    controller.watches(informers.pods, mappers.map_pod)
    controller.watches(informers.deployments, mappers.map_deployment)
    controller.watches(informers.units, mappers.map_unit)
    controller.watches(informers.storages, mappers.map_storage)
    controller.watches(informers.queues, mappers.map_queue)
    controller.watches(informers.network_policies, partial(_map_isolation, informers.units))


def _watch_for_storages(controller: Controller[GPUStorage], informers: ControllerInformers) -> None:
    mappers = GPUStorageMappers(informers.storages.store, informers.units.store)
    controller.watches(informers.storages, mappers.map_storage)
    controller.watches(informers.pvcs, mappers.map_pvc)
    controller.watches(informers.units, mappers.map_unit)
    controller.watches(informers.pods, mappers.map_pod)
    controller.watches(informers.deployments, mappers.map_deployment)
    controller.watches(informers.storage_classes, mappers.map_storage_class)


def _watch_for_pools(controller: Controller[StockPool], informers: ControllerInformers) -> None:
    controller.owns(informers.deployments)
    controller.owns(informers.services)
    controller.owns(informers.network_policies)
    controller.watches(informers.pods, _map_pod_to_pool)
    controller.watches(informers.pods, partial(_map_waiting_pod, informers))
    controller.watches(informers.network_policies, partial(_map_isolation, informers.pools))


def _map_isolation(owners: Informer[T], policy: RawNetworkPolicy) -> list[ObjectKey]:
    """Return one unit or pool of the namespace if a policy of the namespace changes. Its reconcile corrects it."""
    if not is_isolation_policy(policy):
        return []
    keys = (each.metadata.key for each in owners.store.all() if not each.metadata.deletion_timestamp)
    return [key for key in keys if key.namespace == policy.metadata.namespace][:1]


def _map_waiting_pod(informers: ControllerInformers, pod: Pod) -> list[ObjectKey]:
    """Return the adoptable pools if the pod waits for GPUs, because they may have to give way to it."""
    if not waiting_for_gpus(pod):
        return []
    return [pool.metadata.key for pool in informers.pools.store.all() if is_adoptable(pool.spec)]


def _map_pod_to_pool(pod: Pod) -> tuple[ObjectKey, ...]:
    name = pod.metadata.labels.get(Label.POOL)
    return (ObjectKey(pod.metadata.namespace, name),) if name else ()
