"""The connections that a server closes when it has too many."""

from gpu_runtime.process.connection_table import ConnectionLimits, ConnectionTable

LIMITS = ConnectionLimits(max_connections=4, max_connections_per_peer=3)


def opened(*connections: tuple[str, str]) -> ConnectionTable[str]:
    table: ConnectionTable[str] = ConnectionTable(LIMITS)
    for connection, peer in connections:
        assert table.add(connection, peer) is None
    return table


def test_new_connection_replaces_the_oldest_unused_connection_of_its_peer() -> None:
    table = opened(("a", "p"), ("b", "p"), ("c", "p"))
    assert table.add("d", "p") == "a"
    assert table.add("e", "p") == "b"
    assert len(table) == 3


def test_idle_connections_are_replaced_after_unused_ones_and_busy_ones_never() -> None:
    table = opened(("a", "p"), ("b", "p"), ("c", "p"))
    table.mark_busy("a")
    table.mark_busy("b")
    table.mark_idle("b")
    assert table.add("d", "p") == "c"
    table.mark_busy("d")
    assert table.add("e", "p") == "b"
    table.mark_busy("e")
    assert table.add("f", "p") == "f"
    assert table.is_busy("a")
    assert not table.is_busy("f")


def test_total_maximum_costs_the_peer_with_the_most_connections() -> None:
    table = opened(("a", "p"), ("b", "p"), ("c", "p"), ("d", "q"))
    assert table.add("e", "r") == "a"
    assert len(table) == 4


def test_removed_connection_does_not_count() -> None:
    table = opened(("a", "p"), ("b", "p"), ("c", "p"))
    table.remove("b")
    table.remove("b")
    table.mark_idle("b")
    assert table.add("d", "p") is None
    for connection in "acd":
        table.remove(connection)
    assert len(table) == 0
