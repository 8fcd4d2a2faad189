"""Compares the HTTP API with a model: responses to any sequence of requests match docs/api.md, and no stock is lost.

Each request goes to one of two replicas. The Kubernetes API server and the controller manager are real.
"""

import itertools
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar

import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from lightkube import Client

from localcluster.supervisor_client import wait_until
from tests.fuzz.api_model import CONFLICT, CREATED, INVALID, NO_CONTENT, NOT_FOUND, OK, STATUS_410, ApiModel, Request
from tests.fuzz.fuzz_settings import CASE_COUNT, FUZZ_SEED, replay_hint, settings
from tests.integration.controller_manager.conftest import STORAGE, UNIT, Object, as_dict
from tests.integration.runtime_api.edge.conftest import ApiProcess, HttpReply
from tests.integration.runtime_api.live_platform import (
    OPERATION,
    STOCK_NAMESPACE,
    TOKEN,
    UNIT_NAMESPACE,
    ClusterSnapshot,
    LivePlatform,
)
from tests.integration.runtime_api.stock_conservation import conservation_errors

STEPS, FEW_STEPS = 100, 30
"""The requests of one sequence, in a long and in a short run. Every sequence uses new names and new stock."""

CALLERS, FEW_CALLERS = 4, 1
"""The number of concurrent callers. Each uses its own units, stock and storages, so they do not wait for each other."""

NUMBERS = itertools.count()
SYSTEM = "runtime-system"
REPLICAS = st.integers(0, 1)
WHICH = st.integers(0, 5)
"""An index into a small set of names, so that requests often use the same object."""
SIZES = st.integers(1, 4)
IMAGES = st.sampled_from(["python:3.12", "nginx:1.27", " python:3.12 "])
GRADES = st.sampled_from([["prepared"], ["reserved"], ["reserved", "prepared"]])
MOUNTS = st.one_of(st.none(), st.lists(WHICH, max_size=2, unique=True))
INVALID_FIELDS: list[Request] = [
    {"image": ""},
    {"name": "Not-A-Name"},
    {"operationID": ""},
    {"specName": None},
    {"namespace": "kube-system"},
    {"storageMounts": [{"name": "a", "mountPath": "relative"}]},
    {"nonsense": 1},
    {"template": {"ports": [{"name": "a", "port": 0}]}},
    {"template": {"imagePullSecrets": ["nats-worker"]}},
    {"template": {"sharedMemory": "-1"}},
    {"probes": {"readiness": {"tcpSocket": {"port": "missing"}}}},
    {"deleteAfterSeconds": 0},
    {"stock": {"grades": []}},
    {"stock": {"grades": ["warm"]}},
]


class ApiMachine(RuleBasedStateMachine):
    platform: ClassVar[LivePlatform]
    kube: ClassVar[Client]
    responses: ClassVar[Counter[str]]

    def __init__(self) -> None:
        super().__init__()
        self.flavor = f"m{next(NUMBERS)}"
        self.model = ApiModel()

    @initialize()
    def begin(self) -> None:
        """Start with stock, storages and units, so that even a short sequence uses them."""
        self.seed_stock(0, 0, 8)
        for which in range(2):
            self.create_storage(0, which, 1)
            self.create_unit(1, which, which, "python:3.12", [which])

    @rule(replica=REPLICAS, which=WHICH, count=st.sampled_from([1, 1, 2]))
    def seed_stock(self, replica: int, which: int, count: int) -> None:
        request = {"operationID": f"{self.flavor}-seed-{which // 3}", "specName": self.flavor, "replicas": count}
        reply = self._send(replica, "POST", "operator/stock-units", request, self.model.expected_seed(request))
        self.model.record_seed(request, reply.status)
        if reply.status == 202:
            self._wait_for_stock()

    @rule(replica=REPLICAS, operation=st.integers(0, 40), which=WHICH, image=IMAGES, mounts=MOUNTS)
    def create_unit(self, replica: int, operation: int, which: int, image: str, mounts: list[int] | None) -> None:
        self._create(replica, self._request(operation, which, image, mounts))

    @rule(replica=REPLICAS, operation=st.integers(0, 40), which=WHICH, grades=GRADES)
    def create_unit_from_grades(self, replica: int, operation: int, which: int, grades: list[str]) -> None:
        self._create(replica, self._request(operation, which, "python:3.12", None) | {"stock": {"grades": grades}})

    @rule(replica=REPLICAS, other=REPLICAS, which=WHICH)
    def withdraw_stock(self, replica: int, other: int, which: int) -> None:
        """Withdraw a stock unit that one replica lists, with a request to the same or another replica."""
        process = self.platform.shared_replicas[other]
        listed = process.request(f"/api/v1/operator/stock-units?specName={self.flavor}", token=TOKEN).json["data"]
        name = listed[which % len(listed)]["name"] if listed else f"{self.flavor}-missing"
        # The list may still contain a stock unit that a handoff has claimed or consumed.
        expected = {NO_CONTENT, NOT_FOUND, CONFLICT} if listed else {NOT_FOUND}
        reply = self._send(replica, "DELETE", f"operator/stock-units/{name}", None, expected)
        self.model.withdrawn += reply.status == NO_CONTENT

    @rule(replica=REPLICAS, choice=st.integers(0, 1000))
    def replay_create_unit(self, replica: int, choice: int) -> None:
        earlier = [each.request for each in self.model.operations.values() if "name" in each.request]
        if earlier:
            request = earlier[choice % len(earlier)]
            self._create(replica, request)

    @rule(replica=REPLICAS, invalid=st.sampled_from(INVALID_FIELDS), operation=st.integers(0, 40))
    def create_invalid_unit(self, replica: int, invalid: Request, operation: int) -> None:
        request = self._request(operation, 0, "python:3.12", None) | invalid
        self._send(replica, "POST", "gpu-units", request, {INVALID})

    @rule(replica=REPLICAS, which=WHICH, image=IMAGES, mounts=MOUNTS)
    def update_unit(self, replica: int, which: int, image: str, mounts: list[int] | None) -> None:
        request: Request = {"image": image} if mounts is None else {"storageMounts": self._mounts(mounts)}
        name = self._unit(which)
        reply = self._send(replica, "PUT", f"gpu-units/{name}", request, self.model.expected_update(name, request))
        self.model.record_update(name, request, reply.status)
        self._check_unit(reply, name)

    @rule(replica=REPLICAS, which=WHICH, field=st.sampled_from([("specName", "x"), ("gpu", 9), ("image", "a b")]))
    def update_unit_with_invalid_field(self, replica: int, which: int, field: tuple[str, Any]) -> None:
        name = self._unit(which)
        expected = {INVALID} if name in self.model.units else {NOT_FOUND}
        self._send(replica, "PUT", f"gpu-units/{name}", dict([field]), expected)

    @rule(replica=REPLICAS, which=WHICH, running=st.booleans())
    def start_or_stop_unit(self, replica: int, which: int, running: bool) -> None:
        name, verb = self._unit(which), "start" if running else "stop"
        reply = self._send(replica, "POST", f"gpu-units/{name}/{verb}", None, self.model.expected_for_unit(name))
        if reply.status == OK:
            self.model.units[name].running = running
        self._check_unit(reply, name)

    @rule(replica=REPLICAS, which=WHICH)
    def delete_unit(self, replica: int, which: int) -> None:
        name = self._unit(which)
        self._send(replica, "DELETE", f"gpu-units/{name}", None, self.model.expected_for_unit(name, NO_CONTENT))
        self.model.record_delete(name)

    @rule(replica=REPLICAS, which=WHICH)
    def read_unit(self, replica: int, which: int) -> None:
        name = self._unit(which)
        self._send(replica, "GET", f"gpu-units/{name}", None, self.model.expected_read(name))

    @rule(replica=REPLICAS, choice=st.integers(0, 60))
    def read_job(self, replica: int, choice: int) -> None:
        id_ = f"{self.flavor}-op-{choice}"
        expected = {OK} if id_ in self.model.operations else {NOT_FOUND}
        self._send(replica, "GET", f"operator/jobs/{id_}", None, expected)

    @rule(replica=REPLICAS, which=WHICH, size=SIZES)
    def create_storage(self, replica: int, which: int, size: int) -> None:
        name = self._storage(which)
        request = {"name": name, "size": f"{size}Gi"}
        reply = self._send(replica, "POST", "gpu-storages", request, self.model.expected_storage_create(name, size))
        self.model.record_storage_create(name, size, reply.status)

    @rule(replica=REPLICAS, which=WHICH, size=SIZES)
    def resize_storage(self, replica: int, which: int, size: int) -> None:
        name = self._storage(which)
        request = {"size": f"{size * 1024}Mi"}
        reply = self._send(
            replica, "PUT", f"gpu-storages/{name}", request, self.model.expected_storage_update(name, size)
        )
        self.model.record_storage_update(name, size, reply.status)

    @rule(replica=REPLICAS, which=WHICH)
    def delete_storage(self, replica: int, which: int) -> None:
        name = self._storage(which)
        reply = self._send(replica, "DELETE", f"gpu-storages/{name}", None, self.model.expected_storage_delete(name))
        self.model.record_storage_delete(name, reply.status)

    @rule(replica=REPLICAS, which=WHICH)
    def read_storage(self, replica: int, which: int) -> None:
        name = self._storage(which)
        self._send(replica, "GET", f"gpu-storages/{name}", None, self.model.expected_storage_read(name))

    @rule(replica=REPLICAS, path=st.sampled_from(["gpu-units", "gpu-storages", "operator/stock-units"]))
    def list_objects(self, replica: int, path: str) -> None:
        self._send(replica, "GET", f"{path}?limit=500", None, {OK})

    def teardown(self) -> None:
        """Check the invariants over all objects directly in the cluster, then delete the objects."""
        try:
            wait_until(lambda: not self._violations(), 20, lambda: str(self._violations()))
        finally:
            for name in list(self.model.units):
                self._send(0, "DELETE", f"gpu-units/{name}", None, {NO_CONTENT})
            for kind, namespace in ((UNIT, STOCK_NAMESPACE), (STORAGE, UNIT_NAMESPACE), (OPERATION, SYSTEM)):
                for each in self._all(kind, namespace):
                    self.kube.delete(kind, each["metadata"]["name"], namespace=namespace)

    def _create(self, replica: int, request: Request) -> None:
        reply = self._send(replica, "POST", "gpu-units", request, self.model.expected_create(request))
        self.model.record_create(request, reply.status, _error_code(reply))
        if reply.status == CREATED:  # a replica may answer a replay from a stale cache
            self._check_unit(reply, request["name"])

    def _check_unit(self, reply: HttpReply, name: str) -> None:
        if reply.status not in (OK, CREATED) or name not in self.model.units:
            return
        view, unit = reply.json["data"], self.model.units[name]
        mounts = {each["name"]: each["mountPath"] for each in view["storageMounts"]}
        assert (view["image"], mounts) == (unit.image.strip(), unit.mounts), view

    def _request(self, operation: int, which: int, image: str, mounts: list[int] | None) -> Request:
        ids = {"operationID": f"{self.flavor}-op-{operation}", "name": self._unit(which), "specName": self.flavor}
        return {**ids, "image": image, **({"storageMounts": self._mounts(mounts)} if mounts else {})}

    def _mounts(self, which: list[int]) -> list[Object]:
        return [{"name": self._storage(each), "mountPath": f"/data/{each}"} for each in which]

    def _unit(self, which: int) -> str:
        return f"{self.flavor}-u{which}"

    def _storage(self, which: int) -> str:
        return f"{self.flavor}-s{which}"

    def _send(self, replica: int, method: str, path: str, body: Any, expected: set[int]) -> HttpReply:
        process = self.platform.shared_replicas[replica]
        reply = process.request(f"/api/v1/{path}", method, body, TOKEN, timeout=60)
        kind = path.split("/", maxsplit=1)[0].split("?", maxsplit=1)[0]
        self.responses[f"{method} {kind} {reply.status} {_error_code(reply)}".strip()] += 1
        assert reply.status in expected, f"{method} {path} {body}: {reply.status} {reply.json}, not one of {expected}"
        return reply

    def _wait_for_stock(self) -> None:
        for replica in self.platform.shared_replicas:
            wait_until(partial(self._sees_stock, replica), 60, lambda: "the stock is not Ready")

    def _sees_stock(self, replica: ApiProcess) -> bool:
        reply = replica.request(f"/api/v1/operator/inventory?specName={self.flavor}", token=TOKEN)
        ready: int = sum(each["stock"]["ready"] for each in reply.json["data"]["flavors"])
        return ready == self.model.stock

    def _all(self, kind: Any, namespace: str) -> list[Object]:
        objects = map(as_dict, self.kube.list(kind, namespace=namespace, chunk_size=500))
        return [each for each in objects if self._belongs_to_this_sequence(each)]

    def _belongs_to_this_sequence(self, obj: Object) -> bool:
        spec = obj["spec"]
        return self.flavor in (spec.get("specName"), obj["metadata"]["name"].split("-")[0]) or spec.get(
            "operationID", ""
        ).startswith(f"{self.flavor}-")

    def _violations(self) -> list[str]:
        """Violated invariants: conservation of stock, the expected set of units, and one holder per mounted storage."""
        units = self._all(UNIT, UNIT_NAMESPACE)
        operations = {each["spec"]["operationID"]: each for each in self._all(OPERATION, SYSTEM)}
        snapshot = ClusterSnapshot(self._all(UNIT, STOCK_NAMESPACE), units, operations)
        counts = {self.flavor: self.model.seeded}, self.model.deleted_at.keys(), {self.flavor: self.model.withdrawn}
        violations = conservation_errors(snapshot, *counts)
        names = {each["metadata"]["name"] for each in units}
        if names != self.model.units.keys():
            violations.append(f"the units are {sorted(names)}, expected {sorted(self.model.units)}")
        mounted = Counter(mount["name"] for unit in units for mount in unit["spec"].get("storageMounts", []))
        violations += [f"{name} is mounted {times} times" for name, times in mounted.items() if times > 1]
        holders = {
            each["metadata"]["name"]: each["spec"].get("attachedTo", {}).get("unit")
            for each in self._all(STORAGE, UNIT_NAMESPACE)
        }
        for unit in units:
            for mount in unit["spec"].get("storageMounts", []):
                if holders.get(mount["name"]) != unit["metadata"]["name"]:
                    violations.append(f"{unit['metadata']['name']} mounts {mount['name']}, which is not attached to it")
        return violations


def _error_code(reply: HttpReply) -> str:
    return str(reply.json["error"]["code"]) if isinstance(reply.json, dict) and "error" in reply.json else ""


def send_sequences(caller: int, callers: int, steps: int) -> Counter[str]:
    """Run one caller's share of the cases, with its own seed. Returns the number of responses by request and status."""
    responses: Counter[str] = Counter()
    machine = type(f"Caller{caller}", (ApiMachine,), {"responses": responses})
    hypothesis.seed(FUZZ_SEED * CALLERS + caller)(machine)
    share = settings(4 * FEW_STEPS, steps * callers, shrinks=False)
    run_state_machine_as_test(machine, settings=hypothesis.settings(share, stateful_step_count=steps))
    return responses


def test_any_request_sequence_matches_the_model(platform: LivePlatform) -> None:
    steps, callers = (STEPS, CALLERS) if CASE_COUNT else (FEW_STEPS, FEW_CALLERS)
    with platform.control_plane.client() as kube, replay_hint(), ThreadPoolExecutor(callers) as pool:
        ApiMachine.platform, ApiMachine.kube = platform, kube
        shares = pool.map(partial(send_sequences, callers=callers, steps=steps), range(callers))
        responses = sum(shares, Counter[str]())
    print(responses.total(), dict(sorted(responses.items())))
    errors = [line for replica in platform.shared_replicas for line in replica.log_lines if line["level"] == "error"]
    assert errors == []
    if CASE_COUNT >= 1000:
        assert {CREATED, OK, NO_CONTENT, INVALID, NOT_FOUND, CONFLICT, STATUS_410} <= {
            int(response.split()[2]) for response in responses
        }
