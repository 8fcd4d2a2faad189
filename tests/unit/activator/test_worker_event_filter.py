"""Who is listened to: anybody may say anything on the subject of events."""

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
from gpu_runtime.contract.messages.worker_event import WorkerEvent
from tests.unit.activator.activator_objects import unit
from tests.unit.activator.test_worker_liveness import KEY, Clock, event

UNUSED: Any = None


def observe_events(*words: WorkerEvent) -> tuple[WorkerLiveness, FunctionCapacity]:
    """By an activator that knows of one worker."""
    client: Any = SimpleNamespace(patient=lambda **_: None)
    functions, workers, room = FunctionLister(client, "stock"), WorkerLiveness(Clock()), FunctionCapacity(Clock())
    functions.units.store.put(unit(KEY.name, worker_of="f"))
    leading = LeaderComponents(UNUSED, workers, room, functions, UNUSED, UNUSED, UNUSED, lambda: False)
    for word in words:
        leading.on_worker_event(Msg(UNUSED, "events", data=encode(word)))
    return workers, room


def test_event_of_an_existing_worker_is_recorded() -> None:
    workers, room = observe_events(event("registered", 1))
    assert workers.status_of(KEY)
    assert room.try_acquire("f")


@pytest.mark.parametrize("forged", ["worker", "namespace", "serverless_request_id"])
def test_events_of_unknown_workers_are_not_recorded(forged: str) -> None:
    word = event("registered", 1)
    workers, room = observe_events(*(msgspec.structs.replace(word, **{forged: f"x{number}"}) for number in range(1000)))
    assert not workers._statuses
    assert not room._capacities
