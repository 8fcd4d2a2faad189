"""What repeats becomes one Event with a count; what is too much is dropped."""

import datetime

from gpu_runtime.kube.event_recorder import Happening, Ledger, Limits
from gpu_runtime.kube.meta import Key

WALL = datetime.datetime(2026, 11, 15, tzinfo=datetime.UTC)


def happening(note: str = "it broke", name: str = "thing", namespace: str = "ns") -> Happening:
    return Happening("v1", "Thing", Key(namespace, name), f"uid-{name}", "Warning", "Broken", "Reconcile", note)


def test_the_same_thing_again_is_counted() -> None:
    ledger = Ledger()
    for at in range(3):
        assert ledger.note(happening(), float(at), WALL + datetime.timedelta(seconds=at))
    ((_, series),) = ledger.take_due(3.0)
    assert series.count == 3
    assert series.last == WALL + datetime.timedelta(seconds=2)
    assert ledger.take_due(100.0) == [], "nothing happened since"


def test_counts_are_written_at_most_every_few_seconds() -> None:
    ledger = Ledger(Limits(every=5.0))
    ledger.note(happening(), 0.0, WALL)
    assert len(ledger.take_due(0.0)) == 1
    ledger.note(happening(), 1.0, WALL)
    assert ledger.take_due(4.9) == []
    assert len(ledger.take_due(5.0)) == 1


def test_the_same_thing_after_a_long_silence_is_a_new_event() -> None:
    ledger = Ledger(Limits(series=360.0))
    ledger.note(happening(), 0.0, WALL)
    ((_, first),) = ledger.take_due(0.0)
    ledger.note(happening(), 360.0, WALL)
    ((_, second),) = ledger.take_due(360.0)
    assert (second.count, second.event != first.event) == (1, True)


def test_one_object_cannot_flood_the_cluster_and_does_not_silence_others() -> None:
    ledger = Ledger(Limits(burst=3, refill=60.0))
    noted = [ledger.note(happening(f"note {number}"), 0.0, WALL) for number in range(5)]
    assert noted == [True, True, True, False, False]
    assert ledger.note(happening("note 0"), 0.0, WALL), "counting up is always allowed"
    assert ledger.note(happening(name="other"), 0.0, WALL)
    assert not ledger.note(happening("later"), 59.0, WALL)
    assert ledger.note(happening("later"), 60.0, WALL)


def test_memory_is_bounded() -> None:
    ledger = Ledger(Limits(remembered=10))
    for number in range(100):
        ledger.note(happening(name=f"thing-{number}"), 0.0, WALL)
    assert len(ledger.known) == len(ledger.unwritten) == len(ledger.allowances) == 10


def test_events_about_what_has_no_namespace_go_to_the_default_one() -> None:
    ledger = Ledger()
    ledger.note(happening(namespace=""), 0.0, WALL)
    ((_, series),) = ledger.take_due(0.0)
    assert series.event.namespace == "default"
