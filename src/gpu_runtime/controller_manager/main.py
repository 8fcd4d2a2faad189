"""Entry point of the controller manager: builds informers, controllers, leader election, health server and metrics."""

import asyncio
import os
import socket
import time
from pathlib import Path

from gpu_runtime.contract.crd.gpu_storage import GPUStorage
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.stock_pool import StockPool
from gpu_runtime.contract.crd.well_known import Label
from gpu_runtime.controller_manager.controller_informers import ControllerInformers, new_informers
from gpu_runtime.controller_manager.gpu_storage.gpu_storage_mappers import GPUStorageMappers
from gpu_runtime.controller_manager.gpu_storage.reconcile import GPUStorageReconciler
from gpu_runtime.controller_manager.gpu_unit.gpu_unit_mappers import GPUUnitMappers
from gpu_runtime.controller_manager.gpu_unit.reconcile import GPUUnitReconciler
from gpu_runtime.controller_manager.metrics import UnitMetrics
from gpu_runtime.controller_manager.orphan_collector import OrphanCollector
from gpu_runtime.controller_manager.settings import ControllerManagerSettings
from gpu_runtime.controller_manager.stock_pool.reconcile import StockPoolReconciler
from gpu_runtime.controller_manager.storage_locks import StorageLocks
from gpu_runtime.controller_manager.workload.status_writer import StatusWriter
from gpu_runtime.kube.builtin_kinds import Pod
from gpu_runtime.kube.client import KubeClient, open_kube_client
from gpu_runtime.kube.config import load_cluster_config
from gpu_runtime.kube.controller import Controller, ControllerOptions
from gpu_runtime.kube.election import LeaderElectionConfig, LeaderElector
from gpu_runtime.kube.event_recorder import EventRecorder
from gpu_runtime.kube.manager import Manager
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.kube.retry import RetryPolicy
from gpu_runtime.process.health_server import serve_health
from gpu_runtime.process.metrics import new_registry

PROCESS_NAME = "controller-manager"


async def run_controller_manager(settings: ControllerManagerSettings, stopping: asyncio.Event) -> None:
    """Run the controllers until `stopping` is set.

    While another replica is the leader, this process keeps its informers synced and reconciles nothing.
    """
    metrics = KubeMetrics(new_registry(PROCESS_NAME))
    kubeconfig = Path(settings.kubernetes.kubeconfig) if settings.kubernetes.kubeconfig else None
    config = load_cluster_config(kubeconfig, settings.kubernetes.context or None)
    async with open_kube_client(config, field_manager=PROCESS_NAME, metrics=metrics) as connection:
        client = connection.with_options(settings.kubernetes.request_timeout_seconds, RetryPolicy())
        manager = new_manager(client, settings, metrics)

        def check_informers() -> str | None:
            return None if manager.has_synced else "the informer caches have not synced yet"

        checks = {"caches": check_informers}
        async with serve_health(settings.health, metrics.registry, stopping, readiness_checks=checks):
            await manager.run(stopping)


def new_manager(client: KubeClient, settings: ControllerManagerSettings, metrics: KubeMetrics) -> Manager:
    """Create the controllers. If leader election is enabled, a write fails after this process has lost leadership."""
    elector = _new_elector(client, settings, metrics)
    writer = client.fenced(elector.leadership) if elector else client
    recorder = EventRecorder(writer, PROCESS_NAME, _identity(), metrics=metrics)
    informers = new_informers(client, metrics, settings.resync_seconds)
    informers.units.add_event_handler(UnitMetrics(metrics.registry, settings.namespaces.stock).observe_change)
    status_writer, storage_locks = StatusWriter(writer, recorder), StorageLocks()
    units = GPUUnitReconciler(writer, informers, status_writer, settings, storage_locks)
    storages = GPUStorageReconciler(writer, informers, status_writer, settings, storage_locks)
    pools = StockPoolReconciler(writer, informers, status_writer, settings)
    runnables = (
        _unit_controller(informers, units, settings, metrics),
        _storage_controller(informers, storages, settings, metrics),
        _pool_controller(informers, pools, settings, metrics),
        OrphanCollector(writer, informers, time.monotonic),
    )
    return Manager(informers.all, runnables, elector, recorder, settings.graceful_shutdown_timeout_seconds)


def _unit_controller(
    informers: ControllerInformers,
    reconciler: GPUUnitReconciler,
    settings: ControllerManagerSettings,
    metrics: KubeMetrics,
) -> Controller[GPUUnit]:
    options = ControllerOptions(max_concurrent_reconciles=settings.max_concurrent_reconciles.gpu_units)
    controller = Controller("gpu-unit", informers.units, reconciler.reconcile, options, metrics)
    mappers = GPUUnitMappers(informers.units.store)
    controller.owns(informers.deployments)
    controller.owns(informers.services)
    controller.owns(informers.network_policies)
    controller.watches(informers.pods, mappers.map_pod)
    controller.watches(informers.deployments, mappers.map_deployment)
    controller.watches(informers.units, mappers.map_unit)
    controller.watches(informers.storages, mappers.map_storage)
    return controller


def _storage_controller(
    informers: ControllerInformers,
    reconciler: GPUStorageReconciler,
    settings: ControllerManagerSettings,
    metrics: KubeMetrics,
) -> Controller[GPUStorage]:
    options = ControllerOptions(max_concurrent_reconciles=settings.max_concurrent_reconciles.gpu_storages)
    controller = Controller("gpu-storage", informers.storages, reconciler.reconcile, options, metrics)
    mappers = GPUStorageMappers(informers.storages.store, informers.units.store)
    controller.watches(informers.storages, mappers.map_storage)
    controller.watches(informers.pvcs, mappers.map_pvc)
    controller.watches(informers.units, mappers.map_unit)
    controller.watches(informers.pods, mappers.map_pod)
    controller.watches(informers.deployments, mappers.map_deployment)
    controller.watches(informers.storage_classes, mappers.map_storage_class)
    return controller


def _pool_controller(
    informers: ControllerInformers,
    reconciler: StockPoolReconciler,
    settings: ControllerManagerSettings,
    metrics: KubeMetrics,
) -> Controller[StockPool]:
    options = ControllerOptions(max_concurrent_reconciles=settings.max_concurrent_reconciles.stock_pools)
    controller = Controller("stock-pool", informers.pools, reconciler.reconcile, options, metrics)
    controller.owns(informers.deployments)
    controller.owns(informers.services)
    controller.watches(informers.pods, _map_pod_to_pool)
    return controller


def _map_pod_to_pool(pod: Pod) -> tuple[ObjectKey, ...]:
    name = pod.metadata.labels.get(Label.POOL)
    return (ObjectKey(pod.metadata.namespace, name),) if name else ()


def _new_elector(client: KubeClient, settings: ControllerManagerSettings, metrics: KubeMetrics) -> LeaderElector | None:
    election = settings.leader_election
    if not election.enabled:
        return None
    timing = LeaderElectionConfig(
        election.lease_duration_seconds, election.renew_deadline_seconds, election.retry_period_seconds
    )
    return LeaderElector(client, ObjectKey(settings.namespaces.system, PROCESS_NAME), _identity(), timing, metrics)


def _identity() -> str:
    return os.environ.get("POD_NAME") or socket.gethostname()
