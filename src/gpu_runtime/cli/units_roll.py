"""The command `gpu-runtime units roll`: builds the pods of units and stock pools with the latest pod profile.

Running pods keep their pod profile when a new version of the platform starts. This command tells the controller
manager, with an annotation on each unit and pool, to replace their pods. It rolls one object at a time: if the
pods with the new profile do not become ready, the command stops, and the other objects keep their pods.
"""

import argparse
import asyncio
import secrets
import sys
import time
from dataclasses import dataclass
from typing import Any, TypeAlias

from gpu_runtime.contract.crd.conditions import UnitPhase
from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS, GPUUnit
from gpu_runtime.contract.crd.pod_record import PodRecord
from gpu_runtime.contract.crd.stock_pool import STOCK_POOLS, StockPool
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.controller_manager.workload.pod_profile import latest_profile
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.codec import ListOptions
from gpu_runtime.kube.errors import KubeConflict, KubeError, KubeForbidden, KubeNotFound
from gpu_runtime.kube.live_objects import find_live
from gpu_runtime.kube.meta import ApiResource, ObjectKey
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.process.kubernetes import connect_kubernetes
from gpu_runtime.process.settings import InvalidSettings
from gpu_runtime.process.shared_settings import KubernetesSettings

PAGE_SIZE = 200
POLL_SECONDS = 1.0

RolledObject: TypeAlias = GPUUnit | StockPool


class RollFailed(Exception):
    """An object was not rolled. The message names the object, the cause and the remedy."""


@dataclass(frozen=True)
class RollTarget:
    resource: ApiResource[Any]
    key: ObjectKey
    uid: str
    profile: int
    was_ready: bool

    def __str__(self) -> str:
        return f"{self.resource.kind} {self.key}"


def run(options: argparse.Namespace) -> int:
    try:
        return asyncio.run(_roll_all(options))
    except (InvalidSettings, KubeError, RollFailed) as error:
        sys.stderr.write(f"gpu-runtime units roll: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; run the command again to continue\n")
        return 130


async def _roll_all(options: argparse.Namespace) -> int:
    settings = KubernetesSettings(kubeconfig=options.kubeconfig, context=options.context)
    async with connect_kubernetes(settings, "gpu-runtime-cli", KubeMetrics()) as client:
        targets = await find_targets(client, options.namespace, include_current=options.all)
        latest = latest_profile().version
        for number, target in enumerate(targets, 1):
            step = f"[{number}/{len(targets)}] {target}: pod profile {target.profile} -> {latest}"
            if options.dry_run:
                sys.stdout.write(f"{step} (dry run)\n")
                continue
            sys.stdout.write(f"{step} …\n")
            sys.stdout.flush()
            seconds = await roll(client, target, options.timeout_seconds)
            sys.stdout.write(f"[{number}/{len(targets)}] {target}: done after {seconds:.0f} s\n")
    verb = "would be rolled" if options.dry_run else "rolled"
    sys.stdout.write(f"{len(targets)} objects {verb}; the latest pod profile is {latest}\n")
    return 0


async def find_targets(client: KubeClient, namespace: str, *, include_current: bool) -> list[RollTarget]:
    """List the objects to roll, first the pools. The client reads the objects page by page, and keeps only the keys."""
    targets: list[RollTarget] = []
    resources: tuple[ApiResource[Any], ...] = (STOCK_POOLS, GPU_UNITS)
    for resource in resources:
        pages = client.pages(resource, ListOptions(namespace), page_size=PAGE_SIZE)
        async for page in pages:
            targets += [
                RollTarget(
                    resource, each.metadata.key, each.metadata.uid, record.profile, each.status.phase == UnitPhase.READY
                )
                for each in page.items
                if (record := _kept_record(each)) is not None
                and (include_current or record.profile < latest_profile().version)
            ]
    return targets


def _kept_record(found: RolledObject) -> PodRecord | None:
    """Return how the running pods were built. Return None if no pod runs: then the next pod has the latest profile."""
    is_leaving = found.metadata.deletion_timestamp is not None or Annotation.CLAIMED_BY in found.metadata.annotations
    runs = found.spec.running if isinstance(found, GPUUnit) else found.spec.replicas > 0
    return found.status.pod if runs and not is_leaving else None


async def roll(client: KubeClient, target: RollTarget, timeout_seconds: float) -> float:
    """Request the latest profile, and wait until the object has it. Return how many seconds it took."""
    started, request = time.monotonic(), secrets.token_hex(8)
    patch = {"metadata": {"uid": target.uid, "annotations": {Annotation.ROLL_REQUEST: request}}}
    try:
        await client.merge_patch(target.resource, target.key, patch)
    except (KubeNotFound, KubeConflict):  # it was deleted; another object may have its name
        return 0.0
    except KubeForbidden as error:
        text = f"{target}: {error}; use an account that may patch {target.resource.plural}, and run the command again"
        raise RollFailed(text) from error
    while not await _is_rolled(client, target, request):
        if time.monotonic() - started > timeout_seconds:
            raise RollFailed(
                f"{target} was not rolled and Ready after {timeout_seconds:.0f} s, and the command changed no further"
                " object; read its Ready condition, check that the controller manager runs and has the version of this"
                " command, and run the command again"
            )
        await asyncio.sleep(POLL_SECONDS)
    return time.monotonic() - started


async def _is_rolled(client: KubeClient, target: RollTarget, request: str) -> bool:
    found: RolledObject | None = await find_live(client, target.resource, target.key)
    if found is None or found.metadata.uid != target.uid or _kept_record(found) is None:
        return True  # it was deleted or stopped in the meantime
    record = found.status.pod
    is_recorded = record is not None and record.roll_request == request
    return is_recorded and (found.status.phase == UnitPhase.READY or not target.was_ready)
