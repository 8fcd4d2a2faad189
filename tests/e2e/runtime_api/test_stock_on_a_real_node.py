"""Stock of both grades on a real node: a killed process loses nothing, and two containers never have the same GPU.

The variable `STOCK_KILLS` sets the number of creates with a kill, for each grade. The variable `STOCK_SEED` chooses the
process and the step of each kill. With at least 16 creates, every process is killed at every step.
"""

import concurrent.futures
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.apps_v1 import Deployment, ReplicaSet
from lightkube.resources.core_v1 import Pod, Service

from localcluster.node import Node
from localcluster.supervisor_client import wait_until
from tests.e2e.gpu_event_log import GpuEventLog, find_overlaps
from tests.e2e.node_api_requests import api_url, send_request
from tests.e2e.serverless.test_process_kills import matching_pids

GROUP = "runtime.lokiwager.io"
UNIT = create_namespaced_resource(GROUP, "v1alpha1", "GPUUnit", "gpuunits")
OPERATION = create_namespaced_resource(GROUP, "v1alpha1", "Operation", "operations")
KILLS = int(os.environ.get("STOCK_KILLS", "4"))
SEED = int(os.environ.get("STOCK_SEED", "1"))
NODE_GPUS = 16
PROCESSES = {"runtime API": r"gpu-runtime\0runtime-api\0", "controller manager": r"gpu-runtime\0controller-manager\0"}
"""Regular expressions for the command lines of the processes that the tests kill, with all their replicas."""

Object = dict[str, Any]
SERVER = """
import http.server, os, signal
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
http.server.ThreadingHTTPServer(("0.0.0.0", 8080), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
TEMPLATE = {"command": ["python", "-c"], "args": [SERVER], "ports": [{"name": "http", "port": 8080}]}
IMAGE = "python:3.12"


def labels(found: Object) -> Object:
    return found["metadata"].get("labels") or {}


def annotations(found: Object) -> Object:
    return found["metadata"].get("annotations") or {}


def is_named(name: str, found: Object) -> bool:
    return bool(found["metadata"]["name"] == name)


def is_operation(name: str, found: Object) -> bool:
    return bool(found["spec"]["operationID"] == name)


def is_committed(name: str, found: Object) -> bool:
    return is_operation(name, found) and found.get("status", {}).get("state") == "Succeeded"


def is_claimed(name: str, found: Object) -> bool:
    return bool(annotations(found).get(f"{GROUP}/claimed-by") == name)


def is_taken(name: str, found: Object) -> bool:
    return is_claimed(name, found) and f"{GROUP}/unit-uid" in labels(found)


def belongs_to(name: str, found: Object) -> bool:
    return bool(labels(found).get(f"{GROUP}/unit") == name)


@dataclass(frozen=True)
class Step:
    """A step of a handoff. It is done when an object of this kind meets the condition. The name of the unit is also
    its operationID."""

    name: str
    kind: Any
    condition: Callable[[str, Object], bool]


RECORDED = Step("operation recorded", OPERATION, is_operation)
CREATED = Step("unit created", UNIT, is_named)
COMMITTED = Step("operation committed", OPERATION, is_committed)
SERVED = Step("Service created", Service, is_named)
DEPLOYED = Step("Deployment created", Deployment, is_named)
PREPARED_STEPS = (
    RECORDED,
    Step("pod claimed", Pod, is_claimed),
    CREATED,
    COMMITTED,
    SERVED,
    Step("pod taken", Pod, is_taken),
    Step("ReplicaSet created", ReplicaSet, belongs_to),
    DEPLOYED,
)
RESERVED_STEPS = (
    RECORDED,
    Step("stock claimed", UNIT, is_claimed),
    CREATED,
    COMMITTED,
    SERVED,
    DEPLOYED,
    Step("pod created", Pod, belongs_to),
)


@dataclass
class StepKiller:
    """Kills all replicas of a process as soon as a handoff has done a step."""

    node: Node
    killed: Counter[tuple[str, str]] = field(default_factory=Counter)
    _armed: tuple[str, Step, str] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def arm(self, unit: str, step: Step, process: str) -> None:
        with self._lock:
            self._armed = unit, step, process

    def observe(self, kind: Any, found: Object) -> None:
        with self._lock:
            if self._armed is None:
                return
            unit, step, process = self._armed
            if kind is not step.kind or not step.condition(unit, found):
                return
            self._armed = None
        for pid in matching_pids(self.node, PROCESSES[process]):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.killed[process, step.name] += 1

    def watch(self, kind: Any, stopped: threading.Event) -> None:
        with self.node.control_plane.client() as kube:
            while not stopped.is_set():
                with suppress(httpx2.HTTPError):
                    for _, found in kube.watch(kind, namespace="*"):
                        if stopped.is_set():
                            return
                        self.observe(kind, found if isinstance(found, dict) else found.to_dict())


@contextmanager
def step_killer(node: Node) -> Iterator[StepKiller]:
    killer, stopped = StepKiller(node), threading.Event()
    kinds = dict.fromkeys(step.kind for step in (*PREPARED_STEPS, *RESERVED_STEPS))
    with node.control_plane.client() as kube:
        for kind in kinds:  # msgspec must not decode the first object of a type in two threads at the same time
            list(kube.list(kind, namespace="*"))
    for kind in kinds:
        threading.Thread(target=killer.watch, args=(kind, stopped), daemon=True).start()
    try:
        yield killer
    finally:
        stopped.set()  # a thread ends with its next event


def request(node: Node, method: str, path: str, body: Any = None, expected: tuple[int, ...] = (200, 201, 202)) -> Any:
    """Send the request until the response has an expected status: the API may restart meanwhile."""
    deadline = time.monotonic() + 120
    while True:
        last: Any = None
        with suppress(OSError):
            last = send_request(api_url(node), method, path, body)
            if last[0] in expected:
                return last[1].get("data")
        assert time.monotonic() < deadline, f"{method} {path}: {last}"
        time.sleep(0.1)


def create(node: Node, name: str, flavor: str, grade: str) -> Object:
    body = {"operationID": name, "name": name, "specName": flavor, "image": IMAGE, "template": TEMPLATE}
    created: Object = request(node, "POST", "/gpu-units", body | {"stock": {"grades": [grade]}})
    return created


def wait_ready(node: Node, name: str) -> Object:
    """Wait until the unit is Ready, and return its pod."""
    wait_until(
        lambda: request(node, "GET", f"/gpu-units/{name}")["ready"], 120, lambda: f"unit {name} does not become Ready"
    )
    (pod,) = unit_pods(node, name)
    return pod


def unit_pods(node: Node, name: str) -> list[Object]:
    """The pods of the unit that are not being deleted."""
    return [pod for pod in all_pods(node) if belongs_to(name, pod) and "deletionTimestamp" not in pod["metadata"]]


def all_pods(node: Node) -> list[Object]:
    with node.control_plane.client() as kube:
        found = [
            each.to_dict()
            for space in ("runtime-instance", "runtime-stock")
            for each in kube.list(Pod, namespace=space)
        ]
    return [without_nulls(each) for each in found]


def without_nulls(found: Object) -> Object:
    return found | {"metadata": {name: value for name, value in found["metadata"].items() if value is not None}}


def unit_deployments(node: Node, name: str) -> list[str]:
    with node.control_plane.client() as kube:
        found = kube.list(Deployment, namespace="runtime-instance", fields={"metadata.name": name})
        return [str(each.metadata and each.metadata.name) for each in found]


def delete(node: Node, name: str) -> None:
    request(node, "DELETE", f"/gpu-units/{name}", expected=(204, 404))
    wait_until(
        lambda: not [pod for pod in all_pods(node) if belongs_to(name, pod)], 120, lambda: f"pod of {name} exists"
    )


def stock_units(node: Node, flavor: str) -> list[Object]:
    found: list[Object] = request(node, "GET", f"/operator/stock-units?specName={flavor}")
    return found


def seed(node: Node, flavor: str, number: int, replicas: int, gpu: int) -> None:
    body = {"operationID": f"seed-{flavor}-{number}", "specName": flavor, "memory": "64Mi", "gpu": gpu}
    request(node, "POST", "/operator/stock-units", body | {"replicas": replicas})


def wait_stock(node: Node, flavor: str, count: int) -> None:
    def is_ready() -> bool:
        found = stock_units(node, flavor)
        return len(found) == count and all(each["phase"] == "Ready" and not each.get("claimedBy") for each in found)

    wait_until(is_ready, 180, lambda: f"stock {flavor}: {stock_units(node, flavor)}")


def clear_stock(node: Node, flavor: str) -> None:
    for each in stock_units(node, flavor):
        request(node, "DELETE", f"/operator/stock-units/{each['name']}", expected=(204, 404))


@contextmanager
def adoptable_pool(node: Node, name: str, replicas: int, gpu: int = 1) -> Iterator[Callable[[], None]]:
    """Create a pool of prepared pods, and yield a function that waits until it is full."""
    body: Object = {"operationID": f"pool-{name}", "name": name, "namespace": "runtime-instance", "specName": name}
    body |= {"memory": "64Mi", "gpu": gpu, "replicas": replicas, "image": IMAGE, "template": TEMPLATE}
    request(node, "POST", "/operator/stockpools", body | {"adoptable": True})
    path = f"/operator/stockpools/{name}?namespace=runtime-instance"

    def wait_full() -> None:
        wait_until(lambda: request(node, "GET", path)["prepared"] == replicas, 180, lambda: f"pool {name} is not full")

    try:
        wait_full()
        yield wait_full
    finally:
        request(node, "DELETE", path, expected=(204, 404))


def assert_nothing_is_left(node: Node) -> None:
    """No pod is without owner, and no pod is claimed that does not belong to a unit."""

    def left() -> list[str]:
        return [
            pod["metadata"]["name"]
            for pod in all_pods(node)
            if not pod["metadata"].get("ownerReferences")
            or (f"{GROUP}/claimed-by" in annotations(pod) and f"{GROUP}/unit-uid" not in labels(pod))
        ]

    wait_until(lambda: not left(), 180, lambda: f"pods without owner or unit: {left()}")


def kill_plan(steps: tuple[Step, ...]) -> list[tuple[Step, str]]:
    """Return a step and a process for each create, in a random order. Every pair occurs before one repeats."""
    rng = random.Random(SEED)  # noqa: S311 - the same seed must give the same plan
    plan: list[tuple[Step, str]] = []
    while len(plan) < KILLS:
        pairs = [(step, process) for step in steps for process in PROCESSES]
        rng.shuffle(pairs)
        plan += pairs
    return plan[:KILLS]


@pytest.mark.timeout(300 + 60 * KILLS)
def test_kills_during_the_adoption_of_prepared_pods_lose_nothing(deployed_platform: Node) -> None:
    node, plan = deployed_platform, kill_plan(PREPARED_STEPS)
    with GpuEventLog(node) as log, step_killer(node) as killer, adoptable_pool(node, "kill-p", 2) as wait_full:
        for number, (step, process) in enumerate(plan):
            name = f"kill-p-{number}"
            killer.arm(name, step, process)
            created = create(node, name, "kill-p", "prepared")
            pod = wait_ready(node, name)
            assert pod["metadata"]["uid"] == created["sourceStock"]["uid"], (step, process)
            (interval,) = log.of_pod(pod["metadata"]["uid"])
            assert interval.exited_at is None, f"the container was restarted: {step} {process}"
            delete(node, name)
            wait_full()
        assert_nothing_is_left(node)
    assert_kills(killer, plan)
    assert find_overlaps(log.all) == []
    assert len(log.all) >= len(plan) + 2, "the log contains the containers of all units"


@pytest.mark.timeout(300 + 60 * KILLS)
def test_kills_during_handoffs_on_a_full_node_lose_nothing(deployed_platform: Node) -> None:
    """The two stock units have all GPUs of the node. So each unit has to wait for the GPUs of its stock unit."""
    node, plan = deployed_platform, kill_plan(RESERVED_STEPS)
    gpu, consumed = NODE_GPUS // 2, set[str]()
    with GpuEventLog(node) as log, step_killer(node) as killer:
        seed(node, "kill-r", 0, 2, gpu)
        for number, (step, process) in enumerate(plan, start=1):
            wait_stock(node, "kill-r", 2)
            name = f"kill-r-{number}"
            killer.arm(name, step, process)
            created = create(node, name, "kill-r", "reserved")
            wait_ready(node, name)
            assert created["sourceStock"]["name"] not in consumed, "two units were created from the same stock unit"
            consumed.add(created["sourceStock"]["name"])
            wait_until(lambda: len(stock_units(node, "kill-r")) == 1, 120, lambda: "the consumed stock exists")
            delete(node, name)
            seed(node, "kill-r", number, 1, gpu)
        wait_stock(node, "kill-r", 2)
        assert consumed.isdisjoint(each["name"] for each in stock_units(node, "kill-r"))
        assert_nothing_is_left(node)
        clear_stock(node, "kill-r")
        wait_until(lambda: not stock_units(node, "kill-r"), 60, lambda: "the stock was not withdrawn")
    assert_kills(killer, plan)
    assert find_overlaps(log.all) == []
    assert len(log.all) >= gpu * (2 + 2 * len(plan)), "the log contains the containers of all units and all stock"


def assert_kills(killer: StepKiller, plan: list[tuple[Step, str]]) -> None:
    print(f"kills: {dict(killer.killed)}")
    assert set(killer.killed) == {(process, step.name) for step, process in plan}


def test_eight_handoffs_on_a_full_node_end_no_other_stock(deployed_platform: Node) -> None:
    node, count = deployed_platform, NODE_GPUS // 2
    with GpuEventLog(node) as log:
        seed(node, "eight", 0, NODE_GPUS, 1)
        wait_stock(node, "eight", NODE_GPUS)
        before = {
            labels(pod)[f"{GROUP}/unit"]: pod["metadata"]["uid"]
            for pod in all_pods(node)
            if "eight" in str(labels(pod))
        }
        names = [f"eight-{number}" for number in range(count)]
        with concurrent.futures.ThreadPoolExecutor(count) as callers:
            created = list(callers.map(lambda name: create(node, name, "eight", "reserved"), names))
        for name in names:
            wait_ready(node, name)
        consumed = {each["sourceStock"]["name"] for each in created}
        assert len(consumed) == count
        others = {uid for name, uid in before.items() if name not in consumed}
        ended = {each.pod_uid for each in log.all if each.exited_at is not None}
        assert len(others) == count
        assert not ended & others, "stock that no handoff consumed was ended"
        for name in names:
            delete(node, name)
        clear_stock(node, "eight")
        wait_until(lambda: not stock_units(node, "eight"), 60, lambda: "the stock was not withdrawn")
    assert find_overlaps(log.all) == []


def test_adoption_continues_after_a_restart_of_the_kubelet(deployed_platform: Node) -> None:
    """The kubelet is down while the controller manager makes the claimed pod the pod of the unit."""
    node = deployed_platform
    with GpuEventLog(node) as log, adoptable_pool(node, "kubelet", 1) as wait_full:
        managers = matching_pids(node, PROCESSES["controller manager"])
        for pid in managers:
            os.kill(pid, signal.SIGSTOP)
        created = create(node, "kubelet", "kubelet", "prepared")
        node.processes.stop("kubelet")
        for pid in managers:
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: bool(unit_deployments(node, "kubelet")), 60, lambda: "the unit has no Deployment")
        node.start_kubelet()
        pod = wait_ready(node, "kubelet")
        assert pod["metadata"]["uid"] == created["sourceStock"]["uid"]
        (interval,) = log.of_pod(pod["metadata"]["uid"])
        assert interval.exited_at is None
        assert_nothing_is_left(node)
        delete(node, "kubelet")
        wait_full()
    assert find_overlaps(log.all) == []
