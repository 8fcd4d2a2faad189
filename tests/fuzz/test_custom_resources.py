"""Whatever the API server admits: every process survives it, it gets a verdict, and a healthy object becomes Ready."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from lightkube import ApiError, AsyncClient, KubeConfig
from lightkube.types import PatchType

from gpu_runtime.contract.crd.conditions import ReadyReason
from gpu_runtime.contract.crd.well_known import GROUP, Annotation, operation_name
from localcluster.supervisor_client import wait_until
from tests.fuzz.fuzz_settings import fuzzed
from tests.fuzz.loop_thread import LoopThread
from tests.fuzz.schema_strategies import METADATA, spec_schema, values
from tests.fuzz.serverless_processes import WatchedProcess, new_failures, running_activator, watch_platform
from tests.integration.controller_manager.conftest import POOL, STORAGE, UNIT, Object, as_dict, ready_condition
from tests.integration.runtime_api.live_platform import OPERATION, STOCK_NAMESPACE, TOKEN, UNIT_NAMESPACE, LivePlatform

KINDS: dict[str, Any] = {"gpuunits": UNIT, "gpustorages": STORAGE, "stockpools": POOL, "operations": OPERATION}
NUMBERS = itertools.count()
REASONS = {reason.value for reason in ReadyReason}
REFUSALS = (400, 404, 409, 422)
"""With which the API server refuses what is wrong, or too late."""
BATCH_SIZE = 40
"""Objects of one example. Each that is admitted is changed once, too."""


@dataclass
class Manifest:
    plural: str
    namespace: str
    metadata: Object
    spec: Object
    change: Object
    """Of the spec, as a merge patch."""
    status: Object
    """Somebody else's, as a merge patch."""
    name: str = field(default_factory=lambda: f"z{next(NUMBERS)}")

    @property
    def is_reconciled(self) -> bool:
        """Whether the controller manager says something of it. Operations are records."""
        return self.plural != "operations"

    def identity(self) -> str:
        if self.plural == "operations":  # under another name it is nobody's
            return operation_name(str(self.spec.get("operationID")))
        return self.name


TIMES = ("2026-12-31T23:59:60Z", "2026-01-01T00:00:00", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999999Z")
STATUSES: list[Object] = [
    {},
    {"phase": "Ready", "observedGeneration": 2**62},
    *({"lastSyncTime": time, "mountedBy": "none"} for time in TIMES),
    *({"state": state, "finishedAt": time} for state in ("Succeeded", "RollingBack", "Running") for time in TIMES),
]


def manifests(plural: str, *namespaces: str) -> SearchStrategy[Manifest]:
    spec = values(spec_schema(plural))
    change: SearchStrategy[Object] = st.one_of(st.just({}), spec)
    status: SearchStrategy[Object] = st.sampled_from(STATUSES)
    return st.builds(Manifest, st.just(plural), st.sampled_from(namespaces), METADATA, spec, change, status)


MANIFESTS = st.one_of(
    manifests("gpuunits", UNIT_NAMESPACE, UNIT_NAMESPACE, STOCK_NAMESPACE),
    manifests("gpuunits", UNIT_NAMESPACE, UNIT_NAMESPACE, STOCK_NAMESPACE),
    manifests("gpustorages", UNIT_NAMESPACE),
    manifests("stockpools", "default"),
    manifests("operations", "runtime-system"),
)


@dataclass
class FuzzCluster:
    """Where the manifests go, and what became of them."""

    platform: LivePlatform
    loop: LoopThread
    kube: AsyncClient
    watched: list[WatchedProcess]
    count: Counter[str] = field(default_factory=Counter)

    async def create(self, manifest: Manifest) -> bool:
        kind = KINDS[manifest.plural]
        about = manifest.metadata | {"name": manifest.identity(), "namespace": manifest.namespace}
        return await self._is_accepted(
            manifest.plural, self.kube.create(kind.from_dict({"metadata": about, "spec": manifest.spec}))
        )

    async def update(self, manifest: Manifest) -> None:
        kind, name = KINDS[manifest.plural], manifest.identity()
        for changed, patch in ((kind, {"spec": manifest.change}), (kind.Status, {"status": manifest.status})):
            if next(iter(patch.values())):
                call = self.kube.patch(changed, name, patch, namespace=manifest.namespace, patch_type=PatchType.MERGE)
                await self._is_accepted(f"change of {manifest.plural}", call)

    async def _is_accepted(self, what: str, call: Any) -> bool:
        try:
            await call
        except ApiError as refusal:
            if refusal.status.code not in REFUSALS:
                raise
            self.count[f"{what} refused"] += 1
            return False
        self.count[f"{what} admitted"] += 1
        return True

    async def missing_condition(self, manifest: Manifest) -> str:
        """What is missing of its verdict."""
        try:
            found = as_dict(
                await self.kube.get(KINDS[manifest.plural], manifest.identity(), namespace=manifest.namespace)
            )
        except ApiError as error:
            return "" if error.status.code == 404 else str(error)
        if "deletionTimestamp" in found["metadata"]:  # by the activator, which removes workers of nobody
            return ""
        said = ready_condition(found)
        if said.get("reason") in REASONS and said.get("observedGeneration") == found["metadata"]["generation"]:
            return ""
        return f"{manifest.plural}/{manifest.identity()}: {said} of {found['metadata']} {found['spec']}"

    async def delete(self, manifest: Manifest) -> None:
        kind, name = KINDS[manifest.plural], manifest.identity()
        release = {"metadata": {"finalizers": None}}
        try:
            await self.kube.delete(kind, name, namespace=manifest.namespace)
            await self.kube.patch(kind, name, release, namespace=manifest.namespace, patch_type=PatchType.MERGE)
        except ApiError as error:
            if error.status.code not in REFUSALS:
                raise

    async def for_each(self, doing: Any, batch: list[Manifest]) -> list[Any]:
        return list(await asyncio.gather(*(doing(each) for each in batch)))

    def wait_for_conditions(self, batch: list[Manifest]) -> None:
        """On each of them. Those that have theirs are not looked at again: looking is what takes longest."""
        left, missing = batch, [""]

        def none_left() -> bool:
            nonlocal left, missing
            missing = self.loop.call(self.for_each(self.missing_condition, left))
            left = [each for each, why in zip(left, missing, strict=True) if why]
            return not left

        wait_until(none_left, 60, lambda: str(list(filter(None, missing))[:2]), interval_seconds=0.1)

    def list_statuses(self) -> list[int]:
        paths = ("gpu-units", "gpu-storages", "operator/stock-units", "operator/stockpools", "operator/inventory")
        return [
            replica.request(f"/api/v1/{path}", token=TOKEN).status
            for replica in self.platform.shared_replicas
            for path in paths
        ]

    def operation_statuses(self, batch: list[Manifest]) -> list[int]:
        ids = [quote(each.spec["operationID"], safe="") for each in batch if not each.is_reconciled]
        return [
            self.platform.shared_replicas[0].request(f"/api/v1/operator/jobs/{id_}", token=TOKEN).status for id_ in ids
        ]


@pytest.fixture(scope="module")
def cluster(platform: LivePlatform, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FuzzCluster]:
    with LoopThread() as loop, running_activator(platform, tmp_path_factory.mktemp("activator")) as leading:

        async def connected() -> AsyncClient:
            return AsyncClient(config=KubeConfig.from_file(platform.control_plane.kubeconfig))

        kube = loop.call(connected())
        made = FuzzCluster(platform, loop, kube, [*watch_platform(platform), leading])
        yield made
        print(dict(sorted(made.count.items())))
        loop.call(kube.close())


def unit(namespace: str = UNIT_NAMESPACE, **more: Any) -> Manifest:
    spec = {"specName": "g1.1", "image": "python", "running": False, **more.pop("spec", {})}
    return Manifest("gpuunits", namespace, more.pop("metadata", {}), spec, more.pop("change", {}), {})


UNUSUAL_MANIFESTS = [
    unit(metadata={"annotations": {Annotation.OPERATION_ATTEMPT: "9" * 5000, Annotation.OPERATION_ID: "x"}}),
    unit(STOCK_NAMESPACE, metadata={"annotations": {Annotation.CLAIMED_BY: "", Annotation.OPERATION_ID: "\n"}}),
    unit(metadata={"finalizers": [f"{GROUP}/odd"], "labels": {"app.kubernetes.io/managed-by": "gpu-runtime"}}),
    unit(spec={"serverless": {"enabled": True, "requestID": "a", "workerOf": "Not A Name"}}),
    unit(spec={"memory": "9" * 64, "gpu": 2**31 - 1}, change={"memory": "1e100"}),
    Manifest(
        "gpustorages",
        UNIT_NAMESPACE,
        {},
        {"size": "1e100", "attachedTo": {"unit": "none", "attempt": 2**31 - 1}},
        {},
        {},
    ),
]


@fuzzed(120, BATCH_SIZE, shrinks=False)
@given(st.lists(MANIFESTS, min_size=BATCH_SIZE, max_size=BATCH_SIZE))
@example(UNUSUAL_MANIFESTS)
def test_every_admitted_object_gets_a_condition_and_crashes_no_process(
    cluster: FuzzCluster, batch: list[Manifest]
) -> None:
    admitted = [
        each
        for each, taken in zip(batch, cluster.loop.call(cluster.for_each(cluster.create, batch)), strict=True)
        if taken
    ]
    judged = [each for each in admitted if each.is_reconciled]
    try:
        cluster.wait_for_conditions(judged)
        cluster.loop.call(cluster.for_each(cluster.update, admitted))
        cluster.wait_for_conditions(judged)
        assert set(cluster.list_statuses()) == {200}
        assert set(cluster.operation_statuses(admitted)) <= {200, 400, 404}  # some IDs cannot stand in a path
        assert cluster.platform.manager.crashes == 0
        assert new_failures(cluster.watched) == []
    finally:
        cluster.loop.call(cluster.for_each(cluster.delete, admitted))


def test_a_healthy_unit_becomes_ready_afterwards(cluster: FuzzCluster) -> None:
    healthy = unit(spec={"running": True})
    assert cluster.loop.call(cluster.create(healthy))

    async def reason() -> str:
        return str(
            ready_condition(as_dict(await cluster.kube.get(UNIT, healthy.name, namespace=UNIT_NAMESPACE))).get("reason")
        )

    wait_until(lambda: cluster.loop.call(reason()) == "UnitReady", 60, lambda: cluster.loop.call(reason()))
    cluster.loop.call(cluster.delete(healthy))
    assert new_failures(cluster.watched) == []
