"""The HTTP API against a model of it: any sequence of requests is answered as docs/api.md says, and nothing gets lost.

Two replicas, of which each request meets any one, a real API server and the controller manager.
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
"""Of one sequence, in a long and in a short run. The next one begins with new names and new stock."""

CALLERS, FEW_CALLERS = 4, 1
"""Who send sequences at the same time, each of units, stock and storages of its own: none waits while another does."""

NUMBERS = itertools.count()
SYSTEM = "runtime-system"
REPLICAS = st.integers(0, 1)
WHICH = st.integers(0, 5)
"""Of few names, so that they meet again."""
SIZES = st.integers(1, 4)
IMAGES = st.sampled_from(["python:3.12", "nginx:1.27", " python:3.12 "])
MOUNTS = st.one_of(st.none(), st.lists(WHICH, max_size=2, unique=True))
BAD: list[Request] = [
    {"image": ""},
    {"name": "Not-A-Name"},
    {"operationID": ""},
    {"specName": None},
    {"namespace": "kube-system"},
    {"storageMounts": [{"name": "a", "mountPath": "relative"}]},
    {"nonsense": 1},
    {"template": {"ports": [{"name": "a", "port": 0}]}},
]


class ApiMachine(RuleBasedStateMachine):
    platform: ClassVar[LivePlatform]
    kube: ClassVar[Client]
    answers: ClassVar[Counter[str]]

    def __init__(self) -> None:
        super().__init__()
        self.flavor = f"m{next(NUMBERS)}"
        self.model = ApiModel()

    @initialize()
    def begin(self) -> None:
        """With something of everything, so that even a short sequence meets it."""
        self.seeds(0, 0, 8)
        for which in range(2):
            self.makes_a_storage(0, which, 1)
            self.creates(1, which, which, "python:3.12", [which])

    @rule(replica=REPLICAS, which=WHICH, count=st.sampled_from([1, 1, 2]))
    def seeds(self, replica: int, which: int, count: int) -> None:
        request = {"operationID": f"{self.flavor}-seed-{which // 3}", "specName": self.flavor, "replicas": count}
        reply = self._ask(replica, "POST", "operator/stock-units", request, self.model.expected_seed(request))
        self.model.record_seed(request, reply.status)
        if reply.status == 202:
            self._wait_for_stock()

    @rule(replica=REPLICAS, operation=st.integers(0, 40), which=WHICH, image=IMAGES, mounts=MOUNTS)
    def creates(self, replica: int, operation: int, which: int, image: str, mounts: list[int] | None) -> None:
        self._create(replica, self._request(operation, which, image, mounts))

    @rule(replica=REPLICAS, choice=st.integers(0, 1000))
    def creates_again(self, replica: int, choice: int) -> None:
        known = [each.request for each in self.model.operations.values() if "name" in each.request]
        if known:
            request = known[choice % len(known)]
            self._create(replica, request)

    @rule(replica=REPLICAS, bad=st.sampled_from(BAD), operation=st.integers(0, 40))
    def creates_wrongly(self, replica: int, bad: Request, operation: int) -> None:
        request = self._request(operation, 0, "python:3.12", None) | bad
        self._ask(replica, "POST", "gpu-units", request, {INVALID})

    @rule(replica=REPLICAS, which=WHICH, image=IMAGES, mounts=MOUNTS)
    def updates(self, replica: int, which: int, image: str, mounts: list[int] | None) -> None:
        request: Request = {"image": image} if mounts is None else {"storageMounts": self._mounts(mounts)}
        name = self._unit(which)
        reply = self._ask(replica, "PUT", f"gpu-units/{name}", request, self.model.expected_update(name, request))
        self.model.record_update(name, request, reply.status)
        self._check_unit(reply, name)

    @rule(replica=REPLICAS, which=WHICH, field=st.sampled_from([("specName", "x"), ("gpu", 9), ("image", "a b")]))
    def updates_wrongly(self, replica: int, which: int, field: tuple[str, Any]) -> None:
        name = self._unit(which)
        right = {INVALID} if name in self.model.units else {NOT_FOUND}
        self._ask(replica, "PUT", f"gpu-units/{name}", dict([field]), right)

    @rule(replica=REPLICAS, which=WHICH, running=st.booleans())
    def switches(self, replica: int, which: int, running: bool) -> None:
        name, verb = self._unit(which), "start" if running else "stop"
        reply = self._ask(replica, "POST", f"gpu-units/{name}/{verb}", None, self.model.expected_for_unit(name))
        if reply.status == OK:
            self.model.units[name].running = running
        self._check_unit(reply, name)

    @rule(replica=REPLICAS, which=WHICH)
    def deletes(self, replica: int, which: int) -> None:
        name = self._unit(which)
        self._ask(replica, "DELETE", f"gpu-units/{name}", None, self.model.expected_for_unit(name, NO_CONTENT))
        self.model.record_delete(name)

    @rule(replica=REPLICAS, which=WHICH)
    def reads(self, replica: int, which: int) -> None:
        name = self._unit(which)
        self._ask(replica, "GET", f"gpu-units/{name}", None, self.model.expected_read(name))

    @rule(replica=REPLICAS, choice=st.integers(0, 60))
    def asks_for_a_job(self, replica: int, choice: int) -> None:
        id_ = f"{self.flavor}-op-{choice}"
        right = {OK} if id_ in self.model.operations else {NOT_FOUND}
        self._ask(replica, "GET", f"operator/jobs/{id_}", None, right)

    @rule(replica=REPLICAS, which=WHICH, size=SIZES)
    def makes_a_storage(self, replica: int, which: int, size: int) -> None:
        name = self._storage(which)
        request = {"name": name, "size": f"{size}Gi"}
        reply = self._ask(replica, "POST", "gpu-storages", request, self.model.expected_storage_create(name, size))
        self.model.record_storage_create(name, size, reply.status)

    @rule(replica=REPLICAS, which=WHICH, size=SIZES)
    def grows_a_storage(self, replica: int, which: int, size: int) -> None:
        name = self._storage(which)
        request = {"size": f"{size * 1024}Mi"}
        reply = self._ask(
            replica, "PUT", f"gpu-storages/{name}", request, self.model.expected_storage_update(name, size)
        )
        self.model.record_storage_update(name, size, reply.status)

    @rule(replica=REPLICAS, which=WHICH)
    def deletes_a_storage(self, replica: int, which: int) -> None:
        name = self._storage(which)
        reply = self._ask(replica, "DELETE", f"gpu-storages/{name}", None, self.model.expected_storage_delete(name))
        self.model.record_storage_delete(name, reply.status)

    @rule(replica=REPLICAS, which=WHICH)
    def reads_a_storage(self, replica: int, which: int) -> None:
        name = self._storage(which)
        self._ask(replica, "GET", f"gpu-storages/{name}", None, self.model.expected_storage_read(name))

    @rule(replica=REPLICAS, path=st.sampled_from(["gpu-units", "gpu-storages", "operator/stock-units"]))
    def lists(self, replica: int, path: str) -> None:
        self._ask(replica, "GET", f"{path}?limit=500", None, {OK})

    def teardown(self) -> None:
        """What must hold of everything together, seen with other eyes; then nothing of it stays."""
        try:
            wait_until(lambda: not self._violations(), 20, lambda: str(self._violations()))
        finally:
            for name in list(self.model.units):
                self._ask(0, "DELETE", f"gpu-units/{name}", None, {NO_CONTENT})
            for kind, namespace in ((UNIT, STOCK_NAMESPACE), (STORAGE, UNIT_NAMESPACE), (OPERATION, SYSTEM)):
                for each in self._all(kind, namespace):
                    self.kube.delete(kind, each["metadata"]["name"], namespace=namespace)

    def _create(self, replica: int, request: Request) -> None:
        reply = self._ask(replica, "POST", "gpu-units", request, self.model.expected_create(request))
        self.model.record_create(request, reply.status, _error_code(reply))
        if reply.status == CREATED:  # a replay may be answered from the cache of a replica that is a moment behind
            self._check_unit(reply, request["name"])

    def _check_unit(self, reply: HttpReply, name: str) -> None:
        if reply.status not in (OK, CREATED) or name not in self.model.units:
            return
        said, known = reply.json["data"], self.model.units[name]
        mounts = {each["name"]: each["mountPath"] for each in said["storageMounts"]}
        assert (said["image"], mounts) == (known.image.strip(), known.mounts), said

    def _request(self, operation: int, which: int, image: str, mounts: list[int] | None) -> Request:
        named = {"operationID": f"{self.flavor}-op-{operation}", "name": self._unit(which), "specName": self.flavor}
        return {**named, "image": image, **({"storageMounts": self._mounts(mounts)} if mounts else {})}

    def _mounts(self, which: list[int]) -> list[Object]:
        return [{"name": self._storage(each), "mountPath": f"/data/{each}"} for each in which]

    def _unit(self, which: int) -> str:
        return f"{self.flavor}-u{which}"

    def _storage(self, which: int) -> str:
        return f"{self.flavor}-s{which}"

    def _ask(self, replica: int, method: str, path: str, body: Any, right: set[int]) -> HttpReply:
        asked = self.platform.shared_replicas[replica]
        reply = asked.request(f"/api/v1/{path}", method, body, TOKEN, timeout=60)
        kind = path.split("/", maxsplit=1)[0].split("?", maxsplit=1)[0]
        self.answers[f"{method} {kind} {reply.status} {_error_code(reply)}".strip()] += 1
        assert reply.status in right, f"{method} {path} {body}: {reply.status} {reply.json}, not one of {right}"
        return reply

    def _wait_for_stock(self) -> None:
        for replica in self.platform.shared_replicas:
            wait_until(partial(self._sees_stock, replica), 60, lambda: "the stock is not Ready")

    def _sees_stock(self, replica: ApiProcess) -> bool:
        reply = replica.request(f"/api/v1/operator/inventory?specName={self.flavor}", token=TOKEN)
        ready: int = sum(each["stock"]["ready"] for each in reply.json["data"]["flavors"])
        return ready == self.model.stock

    def _all(self, kind: Any, namespace: str) -> list[Object]:
        found = map(as_dict, self.kube.list(kind, namespace=namespace, chunk_size=500))
        return [each for each in found if self._is_ours(each)]

    def _is_ours(self, found: Object) -> bool:
        spec = found["spec"]
        return self.flavor in (spec.get("specName"), found["metadata"]["name"].split("-")[0]) or spec.get(
            "operationID", ""
        ).startswith(f"{self.flavor}-")

    def _violations(self) -> list[str]:
        """What does not hold of stock and units, of mounts and their holders, and of the units that must be there."""
        units = self._all(UNIT, UNIT_NAMESPACE)
        operations = {each["spec"]["operationID"]: each for each in self._all(OPERATION, SYSTEM)}
        seen = ClusterSnapshot(self._all(UNIT, STOCK_NAMESPACE), units, operations)
        found = conservation_errors(seen, {self.flavor: self.model.seeded}, self.model.deleted_at.keys())
        if {each["metadata"]["name"] for each in units} != self.model.units.keys():
            found.append(f"there are {[each['metadata']['name'] for each in units]}")
        mounted = Counter(mount["name"] for unit in units for mount in unit["spec"].get("storageMounts", []))
        found += [f"{name} is mounted {times} times" for name, times in mounted.items() if times > 1]
        holders = {
            each["metadata"]["name"]: each["spec"].get("attachedTo", {}).get("unit")
            for each in self._all(STORAGE, UNIT_NAMESPACE)
        }
        for unit in units:
            for mount in unit["spec"].get("storageMounts", []):
                if holders.get(mount["name"]) != unit["metadata"]["name"]:
                    found.append(f"{unit['metadata']['name']} mounts {mount['name']} without holding it")
        return found


def _error_code(reply: HttpReply) -> str:
    return str(reply.json["error"]["code"]) if isinstance(reply.json, dict) and "error" in reply.json else ""


def send_sequences(caller: int, of: int, steps: int) -> Counter[str]:
    """One caller's share of the cases, from a seed of its own. Gives what was answered, and how often."""
    answers: Counter[str] = Counter()
    machine = type(f"Caller{caller}", (ApiMachine,), {"answers": answers})
    hypothesis.seed(FUZZ_SEED * CALLERS + caller)(machine)
    share = settings(4 * FEW_STEPS, steps * of, shrinks=False)
    run_state_machine_as_test(machine, settings=hypothesis.settings(share, stateful_step_count=steps))
    return answers


def test_any_request_sequence_matches_the_model(platform: LivePlatform) -> None:
    steps, callers = (STEPS, CALLERS) if CASE_COUNT else (FEW_STEPS, FEW_CALLERS)
    with platform.control_plane.client() as kube, replay_hint(), ThreadPoolExecutor(callers) as pool:
        ApiMachine.platform, ApiMachine.kube = platform, kube
        shares = pool.map(partial(send_sequences, of=callers, steps=steps), range(callers))
        answers = sum(shares, Counter[str]())
    print(answers.total(), dict(sorted(answers.items())))
    errors = [line for replica in platform.shared_replicas for line in replica.log_lines if line["level"] == "error"]
    assert errors == []
    if CASE_COUNT >= 1000:
        assert {CREATED, OK, NO_CONTENT, INVALID, NOT_FOUND, CONFLICT, STATUS_410} <= {
            int(answer.split()[2]) for answer in answers
        }
