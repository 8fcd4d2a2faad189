"""The inventory counts stock, units and pools by flavor, with their reservations."""

from typing import Any

import msgspec

from gpu_runtime.runtime_api.stock.inventory import InventorySnapshot, count_inventory
from tests.unit.runtime_api.runtime_api_objects import pool, unit

RESERVATION: dict[str, Any] = {"gpu": 2, "memory": "1536Mi"}


def test_stock_is_counted_once_by_state_with_its_reservation() -> None:
    stock = [
        unit(**RESERVATION),
        unit(claimed="op", **RESERVATION),
        unit(phase=None, **RESERVATION),
        unit(phase="Failed", memory="lots"),
        unit(phase="Empty", running=False, **RESERVATION),
    ]
    assert msgspec.to_builtins(count_inventory(InventorySnapshot(stock=stock)).total.stock) == {
        "ready": 1,
        "progressing": 1,
        "failed": 1,
        "stopped": 1,
        "claimed": 1,
        "reserved": {"gpus": 6, "memory": "4608Mi"},
    }


def test_units_are_counted_by_phase_and_stopped_units_reserve_nothing() -> None:
    active = [unit(phase="Ready", **RESERVATION), unit(phase="Empty", running=False, **RESERVATION)]
    assert msgspec.to_builtins(count_inventory(InventorySnapshot(active=active)).total.active) == {
        "ready": 1,
        "progressing": 0,
        "failed": 0,
        "stopped": 1,
        "reserved": {"gpus": 2, "memory": "1536Mi"},
    }


def test_pools_reserve_their_desired_replicas() -> None:
    inventory = count_inventory(
        InventorySnapshot(pools=[pool(replicas=3, available=2, **RESERVATION), pool(replicas=0, **RESERVATION)])
    )
    assert msgspec.to_builtins(inventory.total.pools) == {
        "pools": 2,
        "desired": 3,
        "available": 2,
        "reserved": {"gpus": 6, "memory": "4608Mi"},
    }


def test_inventory_is_per_flavor_with_a_total() -> None:
    snapshot = InventorySnapshot(
        stock=[unit(spec_name="b"), unit(spec_name="a"), unit(spec_name="b")], pools=[pool(spec_name="c", replicas=1)]
    )
    inventory = count_inventory(snapshot)
    assert [(each.spec_name, each.stock.ready, each.pools.desired) for each in inventory.flavors] == [
        ("a", 1, 0),
        ("b", 2, 0),
        ("c", 0, 1),
    ]
    assert (inventory.total.stock.ready, inventory.total.pools.desired) == (3, 1)


def test_empty_inventory_is_zero() -> None:
    total = count_inventory(InventorySnapshot()).total
    assert (total.stock.ready, total.active.reserved.memory, total.pools.reserved.gpus) == (0, "0", 0)
