"""A unit from stock waits for its GPUs without preemption, and preempts only if it has lost them."""

from datetime import timedelta
from typing import Any, cast

import msgspec
import pytest
from msgspec import structs

from gpu_runtime.contract.crd.operation import Operation
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.controller_manager.gpu_unit.children.deployment import deployment as unit_deployment
from gpu_runtime.controller_manager.gpu_unit.status import readiness
from gpu_runtime.controller_manager.gpu_unit.stock_release import until_preemption, until_release_report
from gpu_runtime.controller_manager.gpu_unit.stock_releaser import COMMIT_POLL_SECONDS, POOL_POLL_SECONDS, StockReleaser
from gpu_runtime.controller_manager.unstructured import RawDeployment
from gpu_runtime.kube.builtin_kinds import Pod, PodSpec, PodStatus
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.errors import ApiStatus, KubeNotFound
from gpu_runtime.kube.meta import ApiResource, ObjectKey
from tests.unit.controller_manager.controller_objects import NOON, metadata, observed_unit, pod, unit

FROM_STOCK = {
    Annotation.SOURCE_STOCK_UID: "s",
    Annotation.SOURCE_STOCK_NAME: "stock",
    Annotation.SOURCE_STOCK_NAMESPACE: "runtime-stock",
}
UNSCHEDULABLE = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPU"}]


def waiting_pod(seconds: int, **fields: Any) -> Any:
    created = (NOON - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return pod(created=created, phase="Pending", conditions=UNSCHEDULABLE, **fields)


def live_deployment(priority_class: str) -> RawDeployment:
    spec = {"template": {"spec": {"priorityClassName": priority_class}}}
    return msgspec.convert(
        {"metadata": metadata("web"), "spec": spec, "status": {"observedGeneration": 1}}, RawDeployment
    )


CASES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "unit without stock": (unit(), {}, "gpu-runtime-active"),
    "worker without stock": (
        unit(serverless={"enabled": True, "requestID": "f", "workerOf": "f"}),
        {"pods": (waiting_pod(600),)},
        "gpu-runtime-handoff",
    ),
    "first pod": (unit(annotations=FROM_STOCK), {}, "gpu-runtime-handoff"),
    "pod is scheduled": (unit(annotations=FROM_STOCK), {"pods": (pod(),)}, "gpu-runtime-handoff"),
    "pod waits for 9 s": (unit(annotations=FROM_STOCK), {"pods": (waiting_pod(9),)}, "gpu-runtime-handoff"),
    "pod waits for 10 s": (unit(annotations=FROM_STOCK), {"pods": (waiting_pod(10),)}, "gpu-runtime-active"),
    "terminating pod waited": (
        unit(annotations=FROM_STOCK),
        {"pods": (waiting_pod(60, deleted="2026-01-01T12:00:00Z"),)},
        "gpu-runtime-handoff",
    ),
    "stopped unit": (unit(annotations=FROM_STOCK, running=False), {}, "gpu-runtime-active"),
    "pod may preempt already": (
        unit(annotations=FROM_STOCK),
        {"deployment": live_deployment("gpu-runtime-active")},
        "gpu-runtime-active",
    ),
    "class was changed by hand": (
        unit(annotations=FROM_STOCK),
        {"deployment": live_deployment("system-node-critical")},
        "gpu-runtime-handoff",
    ),
}


@pytest.mark.parametrize(("found", "fields", "expected"), CASES.values(), ids=CASES)
def test_priority_class(found: Any, fields: dict[str, Any], expected: str) -> None:
    spec = unit_deployment(observed_unit(found, **fields))["spec"]["template"]["spec"]
    assert spec["priorityClassName"] == expected


LOST = pod(node="lost", deleted="2026-01-01T12:00:00Z", priority="gpu-runtime-handoff")
PREEMPTING = {"deployment": live_deployment("gpu-runtime-active")}
STRATEGIES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "unit without stock": (unit(), {"pods": (LOST,)}, "Recreate"),
    "pod on a lost node": (unit(annotations=FROM_STOCK), {"pods": (LOST,)}, "Recreate"),
    "its replacement waits for 9 s": (unit(annotations=FROM_STOCK), {"pods": (LOST, waiting_pod(9))}, "Recreate"),
    "its replacement waits for 10 s": (
        unit(annotations=FROM_STOCK),
        {"pods": (LOST, waiting_pod(10))},
        "RollingUpdate",
    ),
    "its replacement is deleted": (unit(annotations=FROM_STOCK), {"pods": (LOST,)} | PREEMPTING, "RollingUpdate"),
    "lost pod is gone": (unit(annotations=FROM_STOCK), {"pods": (pod(),)} | PREEMPTING, "Recreate"),
    "lost pod has ended": (
        unit(annotations=FROM_STOCK),
        {"pods": (structs.replace(LOST, status=PodStatus(phase="Failed")),)} | PREEMPTING,
        "Recreate",
    ),
    "replaced pod may preempt": (
        unit(annotations=FROM_STOCK),
        {"pods": (structs.replace(LOST, spec=PodSpec(node_name="n", priority_class_name="gpu-runtime-active")),)}
        | PREEMPTING,
        "Recreate",
    ),
    "unit with storages": (
        unit(annotations=FROM_STOCK, storageMounts=[{"name": "models", "mountPath": "/models"}]),
        {"pods": (LOST, waiting_pod(10))},
        "Recreate",
    ),
}


@pytest.mark.parametrize(("found", "fields", "expected"), STRATEGIES.values(), ids=STRATEGIES)
def test_only_a_preempting_pod_does_not_wait_for_the_pod_of_a_lost_node(
    found: Any, fields: dict[str, Any], expected: str
) -> None:
    assert unit_deployment(observed_unit(found, **fields))["spec"]["strategy"]["type"] == expected


def test_unit_is_reconciled_when_its_pod_may_preempt() -> None:
    from_stock = unit(annotations=FROM_STOCK)
    assert until_preemption(observed_unit(from_stock, pods=(waiting_pod(4),))) == 6
    assert until_preemption(observed_unit(from_stock, pods=(waiting_pod(40),))) == 0
    assert until_preemption(observed_unit(from_stock, pods=(pod(),))) is None
    assert until_preemption(observed_unit(unit(), pods=(waiting_pod(4),))) is None


def test_unit_is_reconciled_when_it_must_report_that_it_waits_for_its_stock() -> None:
    from_stock = unit(annotations=FROM_STOCK)
    assert until_release_report(observed_unit(from_stock, pods=(waiting_pod(1),), stock_objects=STOCK_POD)) == 1
    assert until_release_report(observed_unit(from_stock, pods=(waiting_pod(3),), stock_objects=STOCK_POD)) == 0
    assert until_release_report(observed_unit(from_stock, pods=(waiting_pod(1),))) is None
    assert until_release_report(observed_unit(from_stock, pods=(pod(),), stock_objects=STOCK_POD)) is None


STOCK_POD = (pod("p"),)
WAITS_FOR_STOCK = "waiting until no object of the stock unit runtime-stock/stock uses its GPUs"
READINESS: dict[str, tuple[dict[str, Any], str, str]] = {
    "both pods": (
        {"pods": (waiting_pod(2),), "stock_objects": STOCK_POD},
        "StockReleasing",
        WAITS_FOR_STOCK,
    ),
    "both pods for a short time": (
        {"pods": (waiting_pod(1),), "stock_objects": STOCK_POD},
        "UnitProgressing",
        "the unit's pod is starting",
    ),
    "stock pod does not end": (
        {"pods": (waiting_pod(60),), "stock_objects": STOCK_POD},
        "PodStartupFailed",
        "the scheduler found no node for the pod: no GPU",
    ),
    "stock pod is gone": (
        {"pods": (waiting_pod(1),)},
        "PodStartupFailed",
        "the scheduler found no node for the pod: no GPU",
    ),
    "pod is scheduled": ({"stock_objects": STOCK_POD}, "UnitProgressing", "the unit's pod is starting"),
}


@pytest.mark.parametrize(("fields", "reason", "message"), READINESS.values(), ids=READINESS)
def test_unit_reports_that_it_waits_for_its_stock(fields: dict[str, Any], reason: str, message: str) -> None:
    observed = observed_unit(unit(annotations=FROM_STOCK), deployment=live_deployment("gpu-runtime-handoff"), **fields)
    found = readiness(observed)
    assert (found.reason, found.message) == (reason, message)


class StubKube:
    """A Kubernetes client that knows one Operation, and records deletions."""

    def __init__(self, operation: Operation | None) -> None:
        self.operation = operation
        self.deleted: list[tuple[str, str, str | None]] = []

    async def get(self, _resource: object, key: ObjectKey) -> Operation:
        if self.operation is None:
            raise KubeNotFound(ApiStatus(code=404, message=str(key)))
        return self.operation

    async def delete(self, resource: ApiResource[Any], key: ObjectKey, *, uid: str | None = None) -> None:
        self.deleted.append((resource.kind, key.name, uid))


FROM_OPERATION = FROM_STOCK | {Annotation.OPERATION_ID: "make", Annotation.OPERATION_UID: "op-uid"}


def operation(state: str, **changes: Any) -> Operation:
    fields = {"name": "web", "uid": "op-uid", "target_uid": "uid-of-web", "stock": "s"} | changes
    target = {"kind": "GPUUnit", "namespace": "runtime-instance", "name": fields["name"]}
    spec = {"operationID": "make", "type": "CreateUnit", "requestHash": "", "target": target}
    stock = {"namespace": "runtime-stock", "name": "stock", "uid": fields["stock"]}
    status = {"state": state, "attempt": 1, "stock": stock, "targetUID": fields["target_uid"]}
    return msgspec.convert({"metadata": {"uid": fields["uid"]}, "spec": spec, "status": status}, Operation)


def stock_objects() -> tuple[Any, ...]:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "stock-1", "uid": "r", "controller": True}
    stock_pod = {
        "metadata": {"name": "stock-1-p", "namespace": "runtime-stock", "uid": "p", "ownerReferences": [owner]}
    }
    stock_deployment = {"metadata": {"name": "stock", "namespace": "runtime-stock", "uid": "d"}}
    return msgspec.convert(stock_deployment, RawDeployment), msgspec.convert(stock_pod, Pod)


def created_now(found: Any) -> Any:
    return structs.replace(found, metadata=structs.replace(found.metadata, creation_timestamp="2026-01-01T12:00:00Z"))


ENDED = [("Deployment", "stock", "d"), ("ReplicaSet", "stock-1", "r"), ("Pod", "stock-1-p", "p")]
"""The owners are deleted before the pod. Otherwise they create another pod, which may get the GPUs."""
WAITING_FIELDS: dict[str, Any] = {"pods": (waiting_pod(1),), "stock_objects": stock_objects()}
RELEASES: dict[str, tuple[Operation | None, dict[str, Any], list[Any], float | None]] = {
    "pod waits": (operation("Succeeded"), {}, ENDED, None),
    "pod is scheduled": (operation("Succeeded"), {"pods": (pod(),)}, [], None),
    "stock is gone": (operation("Succeeded"), {"stock_objects": ()}, [], None),
    "pod of a pool waits, too": (operation("Succeeded"), {"pools_wait": True}, [], POOL_POLL_SECONDS),
    "pod of a pool waits for long": (
        operation("Succeeded"),
        {"pools_wait": True, "now": NOON + timedelta(seconds=5)},
        ENDED,
        None,
    ),
    "operation can still fail": (operation("Running", target_uid=None), {}, [], COMMIT_POLL_SECONDS),
    "operation has failed": (operation("Failed", target_uid=None), {}, [], None),
    "operation of another unit": (operation("Succeeded", name="other"), {}, [], None),
    "earlier unit with the same name": (operation("Succeeded", target_uid="earlier"), {}, [], None),
    "forged operation UID": (operation("Succeeded", uid="other"), {}, [], None),
    "operation consumed other stock": (operation("Succeeded", stock="other"), {}, [], None),
    "no operation": (None, {}, [], None),
}


@pytest.mark.parametrize(("recorded", "fields", "deleted", "retry"), RELEASES.values(), ids=RELEASES)
async def test_stock_pod_is_ended_only_for_the_unit_that_consumed_it(
    recorded: Operation | None, fields: dict[str, Any], deleted: list[Any], retry: float | None
) -> None:
    kube = StubKube(recorded)
    observed = observed_unit(created_now(unit(annotations=FROM_OPERATION)), **WAITING_FIELDS | fields)
    assert await StockReleaser(cast(KubeClient, kube), "runtime-system").release(observed) == retry
    assert kube.deleted == deleted


async def test_stock_pod_is_ended_as_soon_as_the_operation_commits() -> None:
    class CommittingKube(StubKube):
        """The operation commits after it was read for the first time."""

        async def get(self, resource: object, key: ObjectKey) -> Operation:
            found = await super().get(resource, key)
            self.operation = operation("Succeeded")
            return found

    kube = CommittingKube(operation("Running", target_uid=None))
    observed = observed_unit(unit(annotations=FROM_OPERATION), **WAITING_FIELDS)
    assert await StockReleaser(cast(KubeClient, kube), "runtime-system").release(observed) is None
    assert kube.deleted == ENDED


async def test_scarce_stock_is_ended_before_the_scheduler_has_tried() -> None:
    kube = StubKube(operation("Succeeded"))
    releaser = StockReleaser(cast(KubeClient, kube), "runtime-system")
    created = observed_unit(unit(annotations=FROM_OPERATION), stock_objects=stock_objects())
    assert await releaser.release(created) is None
    assert kube.deleted == [], "other GPUs may be free"
    await releaser.release(observed_unit(unit(annotations=FROM_OPERATION), **WAITING_FIELDS))
    kube.deleted.clear()
    assert await releaser.release(created) is None
    assert kube.deleted == ENDED, "the last unit of the flavor had to wait"
