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

from gpu_runtime.contract.crd.conditions import Reason
from gpu_runtime.contract.crd.well_known import GROUP, Annotation, operation_name
from localcluster.supervisor_client import wait_until
from tests.fuzz.cases import fuzzed
from tests.fuzz.loop import Loop
from tests.fuzz.processes import Watched, activator, complaints, of_platform
from tests.fuzz.schemas import METADATA, schema_of, values
from tests.integration.controller_manager.conftest import POOL, STORAGE, UNIT, Object, as_dict, ready
from tests.integration.runtime_api.live import OPERATION, STOCK, TOKEN, UNITS, Platform

KINDS: dict[str, Any] = {"gpuunits": UNIT, "gpustorages": STORAGE, "stockpools": POOL, "operations": OPERATION}
NUMBERS = itertools.count()
REASONS = {reason.value for reason in Reason}
REFUSALS = (400, 404, 409, 422)
"""With which the API server refuses what is wrong, or too late."""
AT_ONCE = 40
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
    def is_judged(self) -> bool:
        """Whether the controller manager says something of it. Operations are records."""
        return self.plural != "operations"

    def named(self) -> str:
        if self.plural == "operations":  # under another name it is nobody's
            return operation_name(str(self.spec.get("operationID")))
        return self.name


TIMES = ("2026-12-31T23:59:60Z", "2026-01-01T00:00:00", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999999Z")
STATUSES: list[Object] = [
    {},
    {"phase": "Ready", "observedGeneration": 2**62},
    *({"lastSyncTime": time, "mountedBy": "none"} for time in TIMES),
    *({"state": state, "finishedAt": time} for state in ("Succeeded", "GivingUp", "Running") for time in TIMES),
]


def manifests(plural: str, *namespaces: str) -> SearchStrategy[Manifest]:
    spec = values(schema_of(plural))
    change: SearchStrategy[Object] = st.one_of(st.just({}), spec)
    status: SearchStrategy[Object] = st.sampled_from(STATUSES)
    return st.builds(Manifest, st.just(plural), st.sampled_from(namespaces), METADATA, spec, change, status)


MANIFESTS = st.one_of(
    manifests("gpuunits", UNITS, UNITS, STOCK),
    manifests("gpuunits", UNITS, UNITS, STOCK),
    manifests("gpustorages", UNITS),
    manifests("stockpools", "default"),
    manifests("operations", "runtime-system"),
)


@dataclass
class Cluster:
    """Where the manifests go, and what became of them."""

    platform: Platform
    loop: Loop
    kube: AsyncClient
    watched: list[Watched]
    count: Counter[str] = field(default_factory=Counter)

    async def make(self, manifest: Manifest) -> bool:
        kind = KINDS[manifest.plural]
        about = manifest.metadata | {"name": manifest.named(), "namespace": manifest.namespace}
        return await self._tried(
            manifest.plural, self.kube.create(kind.from_dict({"metadata": about, "spec": manifest.spec}))
        )

    async def change(self, manifest: Manifest) -> None:
        kind, name = KINDS[manifest.plural], manifest.named()
        for changed, patch in ((kind, {"spec": manifest.change}), (kind.Status, {"status": manifest.status})):
            if next(iter(patch.values())):
                call = self.kube.patch(changed, name, patch, namespace=manifest.namespace, patch_type=PatchType.MERGE)
                await self._tried(f"change of {manifest.plural}", call)

    async def _tried(self, what: str, call: Any) -> bool:
        try:
            await call
        except ApiError as refusal:
            if refusal.status.code not in REFUSALS:
                raise
            self.count[f"{what} refused"] += 1
            return False
        self.count[f"{what} admitted"] += 1
        return True

    async def unjudged(self, manifest: Manifest) -> str:
        """What is missing of its verdict."""
        try:
            found = as_dict(await self.kube.get(KINDS[manifest.plural], manifest.named(), namespace=manifest.namespace))
        except ApiError as error:
            return "" if error.status.code == 404 else str(error)
        if "deletionTimestamp" in found["metadata"]:  # by the activator, which removes workers of nobody
            return ""
        said = ready(found)
        if said.get("reason") in REASONS and said.get("observedGeneration") == found["metadata"]["generation"]:
            return ""
        return f"{manifest.plural}/{manifest.named()}: {said} of {found['metadata']} {found['spec']}"

    async def end(self, manifest: Manifest) -> None:
        kind, name = KINDS[manifest.plural], manifest.named()
        release = {"metadata": {"finalizers": None}}
        try:
            await self.kube.delete(kind, name, namespace=manifest.namespace)
            await self.kube.patch(kind, name, release, namespace=manifest.namespace, patch_type=PatchType.MERGE)
        except ApiError as error:
            if error.status.code not in REFUSALS:
                raise

    async def all(self, doing: Any, batch: list[Manifest]) -> list[Any]:
        return list(await asyncio.gather(*(doing(each) for each in batch)))

    def wait_for_verdicts(self, batch: list[Manifest]) -> None:
        """On each of them. Those that have theirs are not looked at again: looking is what takes longest."""
        left, missing = batch, [""]

        def none_left() -> bool:
            nonlocal left, missing
            missing = self.loop.call(self.all(self.unjudged, left))
            left = [each for each, why in zip(left, missing, strict=True) if why]
            return not left

        wait_until(none_left, 60, lambda: str(list(filter(None, missing))[:2]), every=0.1)

    def lists(self) -> list[int]:
        paths = ("gpu-units", "gpu-storages", "operator/stock-units", "operator/stockpools", "operator/inventory")
        return [
            replica.ask(f"/api/v1/{path}", token=TOKEN).status for replica in self.platform.standing for path in paths
        ]

    def jobs(self, batch: list[Manifest]) -> list[int]:
        ids = [quote(each.spec["operationID"], safe="") for each in batch if not each.is_judged]
        return [self.platform.standing[0].ask(f"/api/v1/operator/jobs/{id_}", token=TOKEN).status for id_ in ids]


@pytest.fixture(scope="module")
def cluster(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Loop() as loop, activator(platform, tmp_path_factory.mktemp("activator")) as leading:

        async def connected() -> AsyncClient:
            return AsyncClient(config=KubeConfig.from_file(platform.plane.kubeconfig))

        kube = loop.call(connected())
        made = Cluster(platform, loop, kube, [*of_platform(platform), leading])
        yield made
        print(dict(sorted(made.count.items())))
        loop.call(kube.close())


def unit(namespace: str = UNITS, **more: Any) -> Manifest:
    spec = {"specName": "g1.1", "image": "python", "running": False, **more.pop("spec", {})}
    return Manifest("gpuunits", namespace, more.pop("metadata", {}), spec, more.pop("change", {}), {})


ODD = [
    unit(metadata={"annotations": {Annotation.OPERATION_ATTEMPT: "9" * 5000, Annotation.OPERATION_ID: "x"}}),
    unit(STOCK, metadata={"annotations": {Annotation.CLAIMED_BY: "", Annotation.OPERATION_ID: "\n"}}),
    unit(metadata={"finalizers": [f"{GROUP}/odd"], "labels": {"app.kubernetes.io/managed-by": "gpu-runtime"}}),
    unit(spec={"serverless": {"enabled": True, "requestID": "a", "workerOf": "Not A Name"}}),
    unit(spec={"memory": "9" * 64, "gpu": 2**31 - 1}, change={"memory": "1e100"}),
    Manifest("gpustorages", UNITS, {}, {"size": "1e100", "attachedTo": {"unit": "none", "attempt": 2**31 - 1}}, {}, {}),
]


@fuzzed(120, AT_ONCE, shrinks=False)
@given(st.lists(MANIFESTS, min_size=AT_ONCE, max_size=AT_ONCE))
@example(ODD)
def test_whatever_is_admitted_gets_a_verdict_and_harms_nobody(cluster: Cluster, batch: list[Manifest]) -> None:
    admitted = [
        each for each, taken in zip(batch, cluster.loop.call(cluster.all(cluster.make, batch)), strict=True) if taken
    ]
    judged = [each for each in admitted if each.is_judged]
    try:
        cluster.wait_for_verdicts(judged)
        cluster.loop.call(cluster.all(cluster.change, admitted))
        cluster.wait_for_verdicts(judged)
        assert set(cluster.lists()) == {200}
        assert set(cluster.jobs(admitted)) <= {200, 400, 404}  # some IDs cannot stand in a path
        assert cluster.platform.manager.crashes == 0
        assert complaints(cluster.watched) == []
    finally:
        cluster.loop.call(cluster.all(cluster.end, admitted))


def test_a_healthy_unit_becomes_ready_afterwards(cluster: Cluster) -> None:
    healthy = unit(spec={"running": True})
    assert cluster.loop.call(cluster.make(healthy))

    async def reason() -> str:
        return str(ready(as_dict(await cluster.kube.get(UNIT, healthy.name, namespace=UNITS))).get("reason"))

    wait_until(lambda: cluster.loop.call(reason()) == "UnitReady", 60, lambda: cluster.loop.call(reason()))
    cluster.loop.call(cluster.end(healthy))
    assert complaints(cluster.watched) == []
