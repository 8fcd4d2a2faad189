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
from gpu_runtime.controller_manager.controller_informers import Caches, open_caches
from gpu_runtime.controller_manager.gpu_storage.gpu_storage_mappers import Concerns as StorageConcerns
from gpu_runtime.controller_manager.gpu_storage.reconcile import GPUStorageReconciler
from gpu_runtime.controller_manager.gpu_unit.gpu_unit_mappers import Concerns as UnitConcerns
from gpu_runtime.controller_manager.gpu_unit.reconcile import GPUUnitReconciler
from gpu_runtime.controller_manager.metrics import UnitMetrics
from gpu_runtime.controller_manager.orphan_collector import Strays
from gpu_runtime.controller_manager.settings import ControllerManagerSettings
from gpu_runtime.controller_manager.stock_pool.reconcile import StockPoolReconciler
from gpu_runtime.controller_manager.storage_locks import Turns
from gpu_runtime.controller_manager.workload.status_writer import Reporter
from gpu_runtime.kube.builtin_kinds import Pod
from gpu_runtime.kube.client import Client, connect
from gpu_runtime.kube.config import load_config
from gpu_runtime.kube.controller import Controller, ControllerOptions
from gpu_runtime.kube.election import Elector, Timing
from gpu_runtime.kube.event_recorder import Recorder
from gpu_runtime.kube.manager import Ensemble
from gpu_runtime.kube.meta import Key
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.kube.retry import RetryPolicy
from gpu_runtime.process.health_server import serve_endpoints
from gpu_runtime.process.metrics import new_registry

NAME = "controller-manager"


async def manage(settings: ControllerManagerSettings, stopping: asyncio.Event) -> None:
    """Work until told to stop; stand by with warm caches while another process leads."""
    metrics = KubeMetrics(new_registry(NAME))
    kubeconfig = Path(settings.kubernetes.kubeconfig) if settings.kubernetes.kubeconfig else None
    config = load_config(kubeconfig, settings.kubernetes.context or None)
    async with connect(config, field_manager=NAME, metrics=metrics) as connected:
        client = connected.patient(settings.kubernetes.request_timeout_seconds, RetryPolicy())
        ensemble = assemble(client, settings, metrics)

        def caches() -> str | None:
            return None if ensemble.has_synced else "the caches are not complete yet"

        async with serve_endpoints(settings.endpoints, metrics.registry, stopping, ready={"caches": caches}):
            await ensemble.run(stopping)


def assemble(client: Client, settings: ControllerManagerSettings, metrics: KubeMetrics) -> Ensemble:
    elector = _elector(client, settings, metrics)
    writer = client.fenced(elector.leadership) if elector else client
    recorder = Recorder(writer, NAME, _identity(), metrics=metrics)
    caches = open_caches(client, metrics, settings.resync_seconds)
    caches.units.on_change(UnitMetrics(metrics.registry, settings.namespaces.stock).note)
    reporter, turns = Reporter(writer, recorder), Turns()
    controllers = (
        _units(caches, GPUUnitReconciler(writer, caches, reporter, settings, turns), settings, metrics),
        _storages(caches, GPUStorageReconciler(writer, caches, reporter, settings, turns), settings, metrics),
        _pools(caches, StockPoolReconciler(writer, caches, reporter, settings), settings, metrics),
    )
    work = (*controllers, Strays(writer, caches, time.monotonic))
    return Ensemble(caches.all, work, elector, recorder, settings.stop_grace_seconds)


def _units(
    caches: Caches, reconciler: GPUUnitReconciler, settings: ControllerManagerSettings, metrics: KubeMetrics
) -> Controller[GPUUnit]:
    options = ControllerOptions(workers=settings.workers.gpu_units)
    controller = Controller("gpu-unit", caches.units, reconciler.reconcile, options, metrics)
    concerns = UnitConcerns(caches.units.store)
    controller.owns(caches.deployments)
    controller.owns(caches.services)
    controller.owns(caches.network_policies)
    controller.watches(caches.pods, concerns.of_pod)
    controller.watches(caches.deployments, concerns.of_deployment)
    controller.watches(caches.units, concerns.of_unit)
    controller.watches(caches.storages, concerns.of_storage)
    return controller


def _storages(
    caches: Caches, reconciler: GPUStorageReconciler, settings: ControllerManagerSettings, metrics: KubeMetrics
) -> Controller[GPUStorage]:
    options = ControllerOptions(workers=settings.workers.gpu_storages)
    controller = Controller("gpu-storage", caches.storages, reconciler.reconcile, options, metrics)
    concerns = StorageConcerns(caches.storages.store, caches.units.store)
    controller.watches(caches.storages, concerns.of_storage)
    controller.watches(caches.claims, concerns.of_claim)
    controller.watches(caches.units, concerns.of_unit)
    controller.watches(caches.pods, concerns.of_pod)
    controller.watches(caches.deployments, concerns.of_deployment)
    controller.watches(caches.storage_classes, concerns.of_class)
    return controller


def _pools(
    caches: Caches, reconciler: StockPoolReconciler, settings: ControllerManagerSettings, metrics: KubeMetrics
) -> Controller[StockPool]:
    options = ControllerOptions(workers=settings.workers.stock_pools)
    controller = Controller("stock-pool", caches.pools, reconciler.reconcile, options, metrics)
    controller.owns(caches.deployments)
    controller.owns(caches.services)
    controller.watches(caches.pods, _pool_of)
    return controller


def _pool_of(pod: Pod) -> tuple[Key, ...]:
    name = pod.metadata.labels.get(Label.POOL)
    return (Key(pod.metadata.namespace, name),) if name else ()


def _elector(client: Client, settings: ControllerManagerSettings, metrics: KubeMetrics) -> Elector | None:
    election = settings.leader_election
    if not election.enabled:
        return None
    timing = Timing(election.lease_seconds, election.renew_deadline_seconds, election.retry_seconds)
    return Elector(client, Key(settings.namespaces.system, NAME), _identity(), timing, metrics)


def _identity() -> str:
    return os.environ.get("POD_NAME") or socket.gethostname()
