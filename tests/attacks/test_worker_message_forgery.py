"""A sender with the credentials of a worker forges worker events and dispatches of other functions."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from msgspec import structs
from nats.aio.msg import Msg
from prometheus_client import CollectorRegistry

from gpu_runtime.activator.capacity import FunctionCapacity
from gpu_runtime.activator.function_lister import FunctionLister
from gpu_runtime.activator.main import LeaderComponents
from gpu_runtime.activator.worker_liveness import WorkerLiveness, WorkerStatus
from gpu_runtime.backoff import Backoff
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.message_codec import encode
from gpu_runtime.contract.messages.subjects import Subjects
from gpu_runtime.contract.messages.worker_event import WorkerEvent, WorkerEventKind
from gpu_runtime.jetstream.delivery import DeadLetterDelivery, Delivery
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.worker_sidecar.cancellation import CancellationRegistry
from gpu_runtime.worker_sidecar.dispatch_handler import DispatchHandler, DispatchHandlerOptions
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
)


class Activator:
    """An activator whose cache has the function `f` with the worker `f-w0` and its pod."""

    def __init__(self, pod_uid: str | None = "pod-of-f") -> None:
        client: Any = SimpleNamespace(with_options=lambda **_: None)
        self.functions = FunctionLister(client, "stock")
        self.worker = unit(VICTIM.name, worker_of="f", pod_uid=pod_uid)
        for each in (unit("f"), self.worker, unit("f-w9", worker_of="f", pod_uid="thief")):
            self.functions.units.store.put(each)
        self.functions.queues.store.put(queue(self.worker))
        self.liveness, self.capacity = WorkerLiveness(lambda: 0.0), FunctionCapacity(lambda: 0.0)
        self._leader = LeaderComponents(
            UNUSED, SUBJECTS, self.liveness, self.capacity, self.functions, UNUSED, UNUSED, UNUSED, lambda: False
        )

    def receive(self, event: WorkerEvent, subject: str = "") -> None:
        subject = subject or SUBJECTS.events(event.function_id, event.pod_uid)
        self._leader.on_worker_event(Msg(UNUSED, subject, data=encode(event)))

    def record_pod(self, pod_uid: str | None) -> None:
        """Record the pod in the status of the worker, as the controller manager does."""
        status = structs.replace(self.worker.status, pod_uid=pod_uid)
        metadata = structs.replace(self.worker.metadata, resource_version="2")
        self.functions.units.store.put(structs.replace(self.worker, metadata=metadata, status=status))

    @property
    def status(self) -> WorkerStatus | None:
        return self.liveness.status_of(VICTIM)


FORGED_DRAIN = structs.replace(TRUE_EVENT, kind=WorkerEventKind.DRAINING, sequence=9)


def test_event_on_the_subject_of_another_function_does_not_drain_a_worker() -> None:
    activator = Activator()
    activator.receive(TRUE_EVENT)
    own_pod = structs.replace(FORGED_DRAIN, pod_uid="own-pod")
    activator.receive(own_pod, SUBJECTS.events("id-of-attacker", "own-pod"))
    activator.receive(FORGED_DRAIN, SUBJECTS.events("id-of-attacker", "pod-of-f"))
    activator.receive(FORGED_DRAIN, SUBJECTS.events("id-f", "own-pod"))
    assert activator.status is not None
    assert (activator.status.pod_uid, activator.status.draining) == ("pod-of-f", False)


def test_event_of_another_pod_does_not_drain_a_worker() -> None:
    """The sender knows the functionID, for example because it is another worker of the same function."""
    activator = Activator()
    activator.receive(TRUE_EVENT)
    activator.receive(structs.replace(FORGED_DRAIN, pod_uid="own-pod"))
    assert activator.status is not None
    assert (activator.status.pod_uid, activator.status.draining) == ("pod-of-f", False)
    assert activator.capacity.try_acquire("id-f"), "the capacity of the worker is unchanged"


def test_event_that_arrives_before_the_pod_is_recorded_does_not_count() -> None:
    activator = Activator(pod_uid=None)
    activator.receive(structs.replace(FORGED_DRAIN, pod_uid="own-pod"))
    activator.receive(TRUE_EVENT)
    assert activator.status is None
    activator.record_pod("pod-of-f")
    activator.receive(structs.replace(TRUE_EVENT, kind=WorkerEventKind.HEARTBEAT, sequence=2))
    assert activator.status is not None
    assert activator.capacity.try_acquire("id-f"), "the next heartbeat repeats the state"


def test_event_of_a_replaced_pod_does_not_change_its_successor() -> None:
    activator = Activator()
    activator.receive(TRUE_EVENT)
    activator.record_pod("second-pod")
    activator.receive(structs.replace(TRUE_EVENT, pod_uid="second-pod"))
    activator.receive(FORGED_DRAIN)
    assert activator.status is not None
    assert (activator.status.pod_uid, activator.status.draining) == ("second-pod", False)


def test_pod_of_a_deleted_unit_does_not_change_the_next_unit_with_this_name() -> None:
    activator = Activator()
    activator.receive(TRUE_EVENT)
    activator.liveness.remove(VICTIM)
    activator.record_pod(None)
    activator.receive(FORGED_DRAIN)
    assert activator.status is None


def test_event_without_a_pod_does_not_count_for_a_unit_without_a_pod() -> None:
    activator = Activator(pod_uid=None)
    activator.receive(structs.replace(TRUE_EVENT, pod_uid=""), f"{SUBJECTS.prefix}.events.id-f.x")
    assert activator.status is None


def test_events_of_a_unit_that_only_claims_to_be_a_worker_add_no_capacity() -> None:
    activator = Activator()
    activator.receive(structs.replace(TRUE_EVENT, unit="f-w9", pod_uid="thief"))
    assert not activator.capacity.try_acquire("id-f")


def test_orphan_adds_no_capacity_to_another_function() -> None:
    """The function of the worker is deleted. Its pod still finishes invocations, and names another function."""
    activator = Activator()
    without_worker = queue()
    metadata = structs.replace(without_worker.metadata, resource_version="2")
    activator.functions.queues.store.put(structs.replace(without_worker, metadata=metadata))
    activator.receive(TRUE_EVENT)
    assert activator.status is not None, "the activator must know whether the orphan still runs invocations"
    assert not activator.capacity.try_acquire("id-f")


def test_event_of_the_future_does_not_hide_true_events() -> None:
    activator = Activator()
    activator.receive(structs.replace(TRUE_EVENT, sequence=2**62))
    activator.receive(structs.replace(TRUE_EVENT, sequence=2, in_flight=1))
    assert activator.status is not None
    assert activator.status.in_flight == 1


def test_worker_that_claims_a_huge_concurrency_adds_only_the_concurrency_of_its_spec() -> None:
    activator = Activator()
    activator.receive(structs.replace(TRUE_EVENT, concurrency=10**9))
    assert activator.capacity.try_acquire("id-f")
    assert not activator.capacity.try_acquire("id-f"), "the unit has a concurrency of 1"


async def test_dispatch_of_another_function_is_not_run() -> None:
    invocation = Invocation(invocation_id="i", serverless_request_id="b", function_id="id-b", timeout_seconds=60)
    dispatch = Dispatch(invocation=invocation, deadline=NOW + timedelta(seconds=60), dispatched_at=NOW)
    options = DispatchHandlerOptions(
        ServedFunction("id-a", "a"), "a-w0", SUBJECTS, 3, Backoff(initial_seconds=1, max_seconds=1), 1000
    )
    handler = DispatchHandler(
        UNUSED,
        UNUSED,
        UNUSED,
        UNUSED,
        UNUSED,
        CancellationRegistry(UNUSED),
        SidecarMetrics(CollectorRegistry()),
        options,
    )
    delivery = Delivery(SUBJECTS.dispatch("id-b"), encode(dispatch), {}, "DISPATCH", 1, 1, NOW)
    assert isinstance(await handler.handle(delivery), DeadLetterDelivery)
