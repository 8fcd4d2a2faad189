"""A sender with the credentials of a worker forges worker events and dispatches of other functions."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs
from nats.aio.msg import Msg
from prometheus_client import CollectorRegistry

from gpu_runtime.activator.capacity import FunctionCapacity
from gpu_runtime.activator.function_lister import FunctionLister
from gpu_runtime.activator.main import LeaderComponents
from gpu_runtime.activator.worker_liveness import WorkerLiveness
from gpu_runtime.backoff import Backoff
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.message_codec import encode
from gpu_runtime.contract.messages.subjects import Subjects
from gpu_runtime.contract.messages.worker_event import WorkerEvent, WorkerEventKind
from gpu_runtime.jetstream.delivery import DeadLetterDelivery, Delivery
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.worker_sidecar.dispatch_handler import CancellationRegistry, DispatchHandler, DispatchHandlerOptions
from gpu_runtime.worker_sidecar.metrics import SidecarMetrics
from gpu_runtime.worker_sidecar.retry_decision import ServedFunction
from tests.unit.activator.activator_objects import queue, unit

UNUSED: Any = None
SUBJECTS = Subjects()
VICTIM = ObjectKey("units", "f-w0")
NOW = datetime.now(UTC)
TRUE_EVENT = WorkerEvent(
    kind=WorkerEventKind.REGISTERED,
    function_id="id-f",
    unit=VICTIM.name,
    namespace=VICTIM.namespace,
    pod_uid="pod-of-f",
    sequence=1,
    sent_at=NOW,
)


class Activator:
    """An activator whose cache has the function `f` with the worker `f-w0`."""

    def __init__(self) -> None:
        client: Any = SimpleNamespace(with_options=lambda **_: None)
        self.functions, worker = FunctionLister(client, "stock"), unit(VICTIM.name, worker_of="f")
        for each in (unit("f"), worker, unit("f-w9", worker_of="f")):
            self.functions.units.store.put(each)
        self.functions.queues.store.put(queue(worker))
        self.liveness, self.capacity = WorkerLiveness(lambda: 0.0), FunctionCapacity(lambda: 0.0)
        self._leader = LeaderComponents(
            UNUSED, SUBJECTS, self.liveness, self.capacity, self.functions, UNUSED, UNUSED, UNUSED, lambda: False
        )

    def receive(self, subject: str, event: WorkerEvent) -> None:
        self._leader.on_worker_event(Msg(UNUSED, subject, data=encode(event)))


def test_event_on_the_subject_of_another_function_does_not_drain_a_worker() -> None:
    activator = Activator()
    activator.receive(SUBJECTS.events("id-f", "pod-of-f"), TRUE_EVENT)
    forged = structs.replace(TRUE_EVENT, kind=WorkerEventKind.DRAINING, pod_uid="own-pod", sequence=9)
    activator.receive(SUBJECTS.events("id-of-attacker", "own-pod"), forged)
    activator.receive(SUBJECTS.events("id-of-attacker", "pod-of-f"), structs.replace(forged, pod_uid="pod-of-f"))
    activator.receive(SUBJECTS.events("id-f", "own-pod"), structs.replace(forged, pod_uid="pod-of-f"))
    status = activator.liveness.status_of(VICTIM)
    assert status is not None
    assert (status.pod_uid, status.draining) == ("pod-of-f", False)


def test_events_of_a_unit_that_only_claims_to_be_a_worker_do_not_count() -> None:
    activator = Activator()
    activator.receive(SUBJECTS.events("id-f", "thief"), structs.replace(TRUE_EVENT, unit="f-w9", pod_uid="thief"))
    assert activator.liveness.status_of(ObjectKey("units", "f-w9")) is None
    assert not activator.capacity.try_acquire("id-f")


@pytest.mark.parametrize(
    "change", [{"sent_at": datetime(9998, 1, 1, tzinfo=UTC)}, {"sequence": 2**62}], ids=["time", "sequence"]
)
def test_event_of_the_future_does_not_hide_true_events(change: dict[str, Any]) -> None:
    activator = Activator()
    activator.receive(SUBJECTS.events("id-f", "pod-of-f"), structs.replace(TRUE_EVENT, **change))
    later = structs.replace(TRUE_EVENT, sequence=2, sent_at=NOW + timedelta(seconds=1), in_flight=1)
    activator.receive(SUBJECTS.events("id-f", "pod-of-f"), later)
    status = activator.liveness.status_of(VICTIM)
    assert status is not None
    assert status.in_flight == 1


def test_worker_that_claims_a_huge_concurrency_adds_only_the_concurrency_of_its_spec() -> None:
    activator = Activator()
    activator.receive(SUBJECTS.events("id-f", "pod-of-f"), structs.replace(TRUE_EVENT, concurrency=10**9))
    assert activator.capacity.try_acquire("id-f")
    assert not activator.capacity.try_acquire("id-f"), "the unit has a concurrency of 1"


async def test_dispatch_of_another_function_is_not_run() -> None:
    invocation = Invocation(invocation_id="i", serverless_request_id="b", function_id="id-b", timeout_seconds=60)
    dispatch = Dispatch(invocation=invocation, deadline=NOW + timedelta(seconds=60), dispatched_at=NOW)
    options = DispatchHandlerOptions(
        ServedFunction("id-a", "a"), "a-w0", SUBJECTS, 3, Backoff(initial_seconds=1, max_seconds=1), 1000
    )
    handler = DispatchHandler(
        UNUSED, UNUSED, UNUSED, UNUSED, UNUSED, CancellationRegistry(), SidecarMetrics(CollectorRegistry()), options
    )
    delivery = Delivery(SUBJECTS.dispatch("id-b"), encode(dispatch), {}, "DISPATCH", 1, 1, NOW)
    assert isinstance(await handler.handle(delivery), DeadLetterDelivery)
