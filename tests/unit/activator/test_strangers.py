"""Who is listened to: anybody may say anything on the subject of events."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from nats.aio.msg import Msg

from gpu_runtime.activator.capacity import Room
from gpu_runtime.activator.function_lister import Functions
from gpu_runtime.activator.main import Leading
from gpu_runtime.activator.worker_liveness import Workers
from gpu_runtime.contract.messages.message_codec import encode
from gpu_runtime.contract.messages.worker_event import WorkerEvent
from tests.unit.activator.objects import unit
from tests.unit.activator.test_worker_words import KEY, Clock, event

ANYTHING: Any = None


def heard(*words: WorkerEvent) -> tuple[Workers, Room]:
    """By an activator that knows of one worker."""
    client: Any = SimpleNamespace(patient=lambda **_: None)
    functions, workers, room = Functions(client, "stock"), Workers(Clock()), Room(Clock())
    functions.units.store.put(unit(KEY.name, worker_of="f"))
    leading = Leading(ANYTHING, workers, room, functions, ANYTHING, ANYTHING, ANYTHING, lambda: False)
    for word in words:
        leading.event(Msg(ANYTHING, "events", data=encode(word)))
    return workers, room


def test_a_worker_is_heard() -> None:
    workers, room = heard(event("registered", 1))
    assert workers.of(KEY)
    assert room.take("f")


@pytest.mark.parametrize("forged", ["worker", "namespace", "serverless_request_id"])
def test_nothing_is_kept_of_what_strangers_say(forged: str) -> None:
    word = event("registered", 1)
    workers, room = heard(*(msgspec.structs.replace(word, **{forged: f"x{number}"}) for number in range(1000)))
    assert not workers._heard
    assert not room._free
