"""Random custom resources: no process fails, every admitted object gets a condition, and a valid unit becomes Ready."""

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
REJECTION_STATUSES = (400, 404, 409, 422)
"""The statuses with which the API server rejects invalid objects, and objects that are already deleted."""
BATCH_SIZE = 40
"""The number of objects in one example. Each admitted object is also updated once."""


@dataclass
class Manifest:
    plural: str
    namespace: str
    metadata: Object
    spec: Object
    change: Object
    """A merge patch of the spec."""
    status: Object
    """A merge patch of the status, as from another client."""
    name: str = field(default_factory=lambda: f"z{next(NUMBERS)}")

    @property
    def is_reconciled(self) -> bool:
        """Whether the controller manager sets a condition. Operations are only records."""
        return self.plural != "operations"

    def identity(self) -> str:
        if self.plural == "operations":  # the API ignores an Operation with any other name
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
    manifests("stockpools", "default", UNIT_NAMESPACE),
    manifests("operations", "runtime-system"),
)


@dataclass
class FuzzCluster:
    """Applies manifests to the cluster and counts the outcomes."""

    platform: LivePlatform
    loop: LoopThread
    kube: AsyncClient
    watched: list[WatchedProcess]
    count: Counter[str] = field(default_factory=Counter)

    async def create(self, manifest: Manifest) -> bool:
        kind = KINDS[manifest.plural]
        metadata = manifest.metadata | {"name": manifest.identity(), "namespace": manifest.namespace}
        return await self._is_accepted(
            manifest.plural, self.kube.create(kind.from_dict({"metadata": metadata, "spec": manifest.spec}))
        )

    async def update(self, manifest: Manifest) -> None:
        kind, name = KINDS[manifest.plural], manifest.identity()
        for resource, patch in ((kind, {"spec": manifest.change}), (kind.Status, {"status": manifest.status})):
            if next(iter(patch.values())):
                call = self.kube.patch(resource, name, patch, namespace=manifest.namespace, patch_type=PatchType.MERGE)
                await self._is_accepted(f"update of {manifest.plural}", call)

    async def _is_accepted(self, request: str, call: Any) -> bool:
        try:
            await call
        except ApiError as error:
            if error.status.code not in REJECTION_STATUSES:
                raise
            self.count[f"{request} rejected"] += 1
            return False
        self.count[f"{request} admitted"] += 1
        return True

    async def missing_condition(self, manifest: Manifest) -> str:
        """Why the object has no current Ready condition. Empty if it has one or is deleted."""
        try:
            obj = as_dict(
                await self.kube.get(KINDS[manifest.plural], manifest.identity(), namespace=manifest.namespace)
            )
        except ApiError as error:
            return "" if error.status.code == 404 else str(error)
        if "deletionTimestamp" in obj["metadata"]:  # the activator deletes orphaned workers
            return ""
        condition = ready_condition(obj)
        if condition.get("reason") in REASONS and condition.get("observedGeneration") == obj["metadata"]["generation"]:
            return ""
        return f"{manifest.plural}/{manifest.identity()}: {condition} of {obj['metadata']} {obj['spec']}"

    async def delete(self, manifest: Manifest) -> None:
        kind, name = KINDS[manifest.plural], manifest.identity()
        without_finalizers = {"metadata": {"finalizers": None}}
        try:
            await self.kube.delete(kind, name, namespace=manifest.namespace)
            await self.kube.patch(
                kind, name, without_finalizers, namespace=manifest.namespace, patch_type=PatchType.MERGE
            )
        except ApiError as error:
            if error.status.code not in REJECTION_STATUSES:
                raise

    async def for_each(self, function: Any, batch: list[Manifest]) -> list[Any]:
        return list(await asyncio.gather(*(function(each) for each in batch)))

    def wait_for_conditions(self, batch: list[Manifest]) -> None:
        """Wait for the condition of each object. Objects with a condition are not read again: reads are slow."""
        remaining, missing = batch, [""]

        def all_have_conditions() -> bool:
            nonlocal remaining, missing
            missing = self.loop.call(self.for_each(self.missing_condition, remaining))
            remaining = [each for each, reason in zip(remaining, missing, strict=True) if reason]
            return not remaining

        wait_until(all_have_conditions, 60, lambda: str(list(filter(None, missing))[:2]), interval_seconds=0.1)

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
    with LoopThread() as loop, running_activator(platform, tmp_path_factory.mktemp("activator")) as activator:

        async def connected() -> AsyncClient:
            return AsyncClient(config=KubeConfig.from_file(platform.control_plane.kubeconfig))

        kube = loop.call(connected())
        fuzz_cluster = FuzzCluster(platform, loop, kube, [*watch_platform(platform), activator])
        yield fuzz_cluster
        print(dict(sorted(fuzz_cluster.count.items())))
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
        for each, accepted in zip(batch, cluster.loop.call(cluster.for_each(cluster.create, batch)), strict=True)
        if accepted
    ]
    reconciled = [each for each in admitted if each.is_reconciled]
    try:
        cluster.wait_for_conditions(reconciled)
        cluster.loop.call(cluster.for_each(cluster.update, admitted))
        cluster.wait_for_conditions(reconciled)
        assert set(cluster.list_statuses()) == {200}
        assert set(cluster.operation_statuses(admitted)) <= {200, 400, 404}  # some IDs are not valid in a URL path
        assert cluster.platform.manager.crashes == 0
        assert new_failures(cluster.watched) == []
    finally:
        cluster.loop.call(cluster.for_each(cluster.delete, admitted))


def test_valid_unit_becomes_ready_afterwards(cluster: FuzzCluster) -> None:
    healthy = unit(spec={"running": True})
    assert cluster.loop.call(cluster.create(healthy))

    async def reason() -> str:
        return str(
            ready_condition(as_dict(await cluster.kube.get(UNIT, healthy.name, namespace=UNIT_NAMESPACE))).get("reason")
        )

    wait_until(lambda: cluster.loop.call(reason()) == "UnitReady", 60, lambda: cluster.loop.call(reason()))
    cluster.loop.call(cluster.delete(healthy))
    assert new_failures(cluster.watched) == []
