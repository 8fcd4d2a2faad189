"""The activator ignores events of unknown workers, because any NATS client can publish on the events subject."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from nats.aio.msg import Msg

from gpu_runtime.activator.capacity import FunctionCapacity
from gpu_runtime.activator.function_lister import FunctionLister
from gpu_runtime.activator.main import LeaderComponents
from gpu_runtime.activator.worker_liveness import WorkerLiveness
from gpu_runtime.contract.messages.message_codec import encode
from gpu_runtime.contract.messages.subjects import Subjects
from gpu_runtime.contract.messages.worker_event import WorkerEvent
from gpu_runtime.contract.timing import MAX_HEARTBEAT_SECONDS
from tests.unit.activator.activator_objects import queue, unit
from tests.unit.activator.test_worker_liveness import KEY, Clock, event, slow_event

UNUSED: Any = None
SUBJECTS = Subjects()


def observe_events(*events: WorkerEvent) -> tuple[WorkerLiveness, FunctionCapacity]:
    """Send events to an activator whose cache has one worker. Return its state."""
    client: Any = SimpleNamespace(with_options=lambda **_: None)
    functions, liveness, capacity = FunctionLister(client, "stock"), WorkerLiveness(Clock()), FunctionCapacity(Clock())
    functions.units.store.put(unit("f"))
    recorded = unit(KEY.name, worker_of="f", pod_uid="one")
    functions.units.store.put(recorded)
    functions.queues.store.put(queue(recorded))
    leader = LeaderComponents(UNUSED, SUBJECTS, liveness, capacity, functions, UNUSED, UNUSED, UNUSED, lambda: False)
    for each in events:
        leader.on_worker_event(Msg(UNUSED, SUBJECTS.events(each.function_id, each.pod_uid), data=encode(each)))
    return liveness, capacity


def test_event_of_an_existing_worker_is_recorded() -> None:
    liveness, capacity = observe_events(event("registered", 1))
    assert liveness.status_of(KEY)
    assert capacity.try_acquire("id-f")


@pytest.mark.parametrize("field", ["unit", "namespace", "function_id"])
def test_events_of_unknown_workers_are_not_recorded(field: str) -> None:
    forged_event = event("registered", 1)
    liveness, capacity = observe_events(
        *(msgspec.structs.replace(forged_event, **{field: f"x{number}"}) for number in range(1000))
    )
    assert not liveness._statuses
    assert not capacity._capacities


@pytest.mark.parametrize("seconds", [-1, 0, MAX_HEARTBEAT_SECONDS + 1, 1e300])
def test_event_that_claims_a_heartbeat_interval_out_of_bounds_is_not_recorded(seconds: float) -> None:
    liveness, capacity = observe_events(slow_event("registered", 1, heartbeat_seconds=seconds))
    assert liveness.status_of(KEY) is None
    assert not capacity.try_acquire("id-f")


def test_event_that_claims_the_longest_heartbeat_interval_is_recorded() -> None:
    liveness, _ = observe_events(slow_event("registered", 1, heartbeat_seconds=MAX_HEARTBEAT_SECONDS))
    assert liveness.status_of(KEY)
