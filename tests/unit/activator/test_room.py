"""Whether a function's workers have room, as far as they said."""

from gpu_runtime.activator.capacity import SILENCE, Room
from gpu_runtime.kube.meta import Key
from tests.unit.activator.test_worker_words import KEY, Clock, event


def room_after(*events: tuple[str, int]) -> tuple[Room, Clock]:
    clock = Clock()
    room = Room(clock)
    for sequence, (kind, in_flight) in enumerate(events):
        room.hear(event(kind, sequence, in_flight))
    return room, clock


def test_where_nobody_spoke_there_is_no_room() -> None:
    assert not Room(Clock()).take("f")


def test_a_free_worker_has_room_once_until_it_speaks_again() -> None:
    room, _ = room_after(("registered", 0))
    assert not room.take("another")
    assert room.take("f")
    assert not room.take("f")
    room.hear(event("finished", 9))
    assert room.take("f")


def test_a_busy_or_draining_worker_has_none() -> None:
    assert not room_after(("started", 1))[0].take("f")
    assert not room_after(("registered", 0), ("draining", 0))[0].take("f")


def test_a_worker_that_is_gone_or_silent_is_not_counted_on() -> None:
    room, clock = room_after(("registered", 0))
    clock.now = SILENCE
    assert not room.take("f")
    room.hear(event("heartbeat", 2))
    room.leave(Key("units", "another"))
    assert room.take("f")
    room.hear(event("heartbeat", 3))
    room.leave(KEY)
    assert not room.take("f")
