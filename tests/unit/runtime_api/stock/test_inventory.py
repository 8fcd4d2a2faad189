"""Counting what there is."""

from typing import Any

import msgspec

from gpu_runtime.runtime_api.stock.inventory import Seen, inventory
from tests.unit.runtime_api.objects import pool, unit

ENVELOPE: dict[str, Any] = {"gpu": 2, "memory": "1536Mi"}


def test_every_stock_unit_is_in_one_state_and_all_hold_what_they_reserve() -> None:
    stock = [
        unit(**ENVELOPE),
        unit(claimed="op", **ENVELOPE),
        unit(phase=None, **ENVELOPE),
        unit(phase="Failed", memory="lots"),
        unit(phase="Empty", running=False, **ENVELOPE),
    ]
    assert msgspec.to_builtins(inventory(Seen(stock=stock)).total.stock) == {
        "ready": 1,
        "progressing": 1,
        "failed": 1,
        "stopped": 1,
        "claimed": 1,
        "reserved": {"gpus": 6, "memory": "4608Mi"},
    }


def test_units_count_by_phase_and_what_is_stopped_holds_nothing() -> None:
    active = [unit(phase="Ready", **ENVELOPE), unit(phase="Empty", running=False, **ENVELOPE)]
    assert msgspec.to_builtins(inventory(Seen(active=active)).total.active) == {
        "ready": 1,
        "progressing": 0,
        "failed": 0,
        "stopped": 1,
        "reserved": {"gpus": 2, "memory": "1536Mi"},
    }


def test_pools_hold_what_they_want_whether_or_not_it_is_there() -> None:
    found = inventory(Seen(pools=[pool(replicas=3, available=2, **ENVELOPE), pool(replicas=0, **ENVELOPE)]))
    assert msgspec.to_builtins(found.total.pools) == {
        "pools": 2,
        "desired": 3,
        "available": 2,
        "reserved": {"gpus": 6, "memory": "4608Mi"},
    }


def test_flavours_are_told_apart_and_add_up() -> None:
    seen = Seen(
        stock=[unit(spec_name="b"), unit(spec_name="a"), unit(spec_name="b")], pools=[pool(spec_name="c", replicas=1)]
    )
    found = inventory(seen)
    assert [(each.spec_name, each.stock.ready, each.pools.desired) for each in found.flavours] == [
        ("a", 1, 0),
        ("b", 2, 0),
        ("c", 0, 1),
    ]
    assert (found.total.stock.ready, found.total.pools.desired) == (3, 1)


def test_nothing_is_counted_as_nothing() -> None:
    total = inventory(Seen()).total
    assert (total.stock.ready, total.active.reserved.memory, total.pools.reserved.gpus) == (0, "0", 0)
