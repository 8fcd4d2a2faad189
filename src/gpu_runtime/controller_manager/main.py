"""The controller manager: reconcilers on caches, one leader, health and metrics. It serves no API."""

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
from gpu_runtime.controller_manager.gpu_storage.gpu_storage_mappers import GPUStorageMappers as StorageConcerns
from gpu_runtime.controller_manager.gpu_storage.reconcile import GPUStorageReconciler
from gpu_runtime.controller_manager.gpu_unit.gpu_unit_mappers import GPUUnitMappers as UnitConcerns
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
    """Work until told to stop; stand by with warm caches while another process leads."""
    metrics = KubeMetrics(new_registry(PROCESS_NAME))
    kubeconfig = Path(settings.kubernetes.kubeconfig) if settings.kubernetes.kubeconfig else None
    config = load_cluster_config(kubeconfig, settings.kubernetes.context or None)
    async with open_kube_client(config, field_manager=PROCESS_NAME, metrics=metrics) as connected:
        client = connected.with_options(settings.kubernetes.request_timeout_seconds, RetryPolicy())
        ensemble = new_manager(client, settings, metrics)

        def caches() -> str | None:
            return None if ensemble.has_synced else "the caches are not complete yet"

        async with serve_health(settings.health, metrics.registry, stopping, readiness_checks={"caches": caches}):
            await ensemble.run(stopping)


def new_manager(client: KubeClient, settings: ControllerManagerSettings, metrics: KubeMetrics) -> Manager:
    elector = _new_elector(client, settings, metrics)
    writer = client.fenced(elector.leadership) if elector else client
    recorder = EventRecorder(writer, PROCESS_NAME, _identity(), metrics=metrics)
    caches = new_informers(client, metrics, settings.resync_seconds)
    caches.units.add_event_handler(UnitMetrics(metrics.registry, settings.namespaces.stock).observe_change)
    reporter, turns = StatusWriter(writer, recorder), StorageLocks()
    controllers = (
        _unit_controller(caches, GPUUnitReconciler(writer, caches, reporter, settings, turns), settings, metrics),
        _storage_controller(caches, GPUStorageReconciler(writer, caches, reporter, settings, turns), settings, metrics),
        _pool_controller(caches, StockPoolReconciler(writer, caches, reporter, settings), settings, metrics),
    )
    work = (*controllers, OrphanCollector(writer, caches, time.monotonic))
    return Manager(caches.all, work, elector, recorder, settings.graceful_shutdown_timeout_seconds)


def _unit_controller(
    caches: ControllerInformers,
    reconciler: GPUUnitReconciler,
    settings: ControllerManagerSettings,
    metrics: KubeMetrics,
) -> Controller[GPUUnit]:
    options = ControllerOptions(max_concurrent_reconciles=settings.max_concurrent_reconciles.gpu_units)
    controller = Controller("gpu-unit", caches.units, reconciler.reconcile, options, metrics)
    concerns = UnitConcerns(caches.units.store)
    controller.owns(caches.deployments)
    controller.owns(caches.services)
    controller.owns(caches.network_policies)
    controller.watches(caches.pods, concerns.map_pod)
    controller.watches(caches.deployments, concerns.map_deployment)
    controller.watches(caches.units, concerns.map_unit)
    controller.watches(caches.storages, concerns.map_storage)
    return controller


def _storage_controller(
    caches: ControllerInformers,
    reconciler: GPUStorageReconciler,
    settings: ControllerManagerSettings,
    metrics: KubeMetrics,
) -> Controller[GPUStorage]:
    options = ControllerOptions(max_concurrent_reconciles=settings.max_concurrent_reconciles.gpu_storages)
    controller = Controller("gpu-storage", caches.storages, reconciler.reconcile, options, metrics)
    concerns = StorageConcerns(caches.storages.store, caches.units.store)
    controller.watches(caches.storages, concerns.map_storage)
    controller.watches(caches.pvcs, concerns.map_pvc)
    controller.watches(caches.units, concerns.map_unit)
    controller.watches(caches.pods, concerns.map_pod)
    controller.watches(caches.deployments, concerns.map_deployment)
    controller.watches(caches.storage_classes, concerns.map_storage_class)
    return controller


def _pool_controller(
    caches: ControllerInformers,
    reconciler: StockPoolReconciler,
    settings: ControllerManagerSettings,
    metrics: KubeMetrics,
) -> Controller[StockPool]:
    options = ControllerOptions(max_concurrent_reconciles=settings.max_concurrent_reconciles.stock_pools)
    controller = Controller("stock-pool", caches.pools, reconciler.reconcile, options, metrics)
    controller.owns(caches.deployments)
    controller.owns(caches.services)
    controller.watches(caches.pods, _map_pod_to_pool)
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
