"""The state machine of operations: which transitions are legal, what they write, and what the documentation shows."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest

from gpu_runtime.contract.crd.operation import (
    OperationError,
    OperationState,
    OperationStatus,
    OperationType,
    SourceStock,
)
from gpu_runtime.contract.errors import QuotaExceeded
from gpu_runtime.contract.operation_transitions import (
    TRANSITION_RULES,
    Committed,
    CreationStarted,
    IllegalTransition,
    RollbackStarted,
    RolledBack,
    StockLost,
    StockSeeded,
    StockSelected,
    Transition,
    next_status,
    rollback,
)

ACCEPTED, RUNNING, ROLLING_BACK, SUCCEEDED, FAILED = OperationState
UNIT, SEED, POOL = OperationType.CREATE_UNIT, OperationType.SEED_STOCK, OperationType.CREATE_STOCK_POOL
NOW, EARLIER = "2026-01-02T03:04:05Z", "2026-01-01T00:00:00Z"
STOCK = SourceStock(namespace="runtime-stock", name="stock-1", uid="u1")
OTHER = SourceStock(namespace="runtime-stock", name="stock-2", uid="u2")
ERROR = OperationError(code="quota_exceeded", message="too many")
ARCHITECTURE = Path(__file__).parents[3] / "docs" / "architecture.md"

EXAMPLES: dict[type, Transition] = {
    CreationStarted: CreationStarted(),
    StockSelected: StockSelected(OTHER),
    StockLost: StockLost(),
    StockSeeded: StockSeeded(("a",)),
    Committed: Committed(("a",)),
    RollbackStarted: RollbackStarted(ERROR),
    RolledBack: RolledBack(),
}

LEGAL = {
    (SEED, ACCEPTED, CreationStarted): RUNNING,
    (POOL, ACCEPTED, CreationStarted): RUNNING,
    (UNIT, ACCEPTED, StockSelected): RUNNING,
    (UNIT, RUNNING, StockSelected): RUNNING,
    (UNIT, RUNNING, StockLost): ACCEPTED,
    (SEED, RUNNING, StockSeeded): RUNNING,
    (UNIT, RUNNING, Committed): SUCCEEDED,
    (SEED, RUNNING, Committed): SUCCEEDED,
    (POOL, RUNNING, Committed): SUCCEEDED,
    (UNIT, RUNNING, RollbackStarted): ROLLING_BACK,
    (SEED, RUNNING, RollbackStarted): ROLLING_BACK,
    (POOL, RUNNING, RollbackStarted): ROLLING_BACK,
    (UNIT, ROLLING_BACK, RolledBack): FAILED,
    (SEED, ROLLING_BACK, RolledBack): FAILED,
    (POOL, ROLLING_BACK, RolledBack): FAILED,
}


def test_every_transition_has_a_rule() -> None:
    assert set(get_args(Transition)) == set(TRANSITION_RULES) == set(EXAMPLES)


@pytest.mark.parametrize("transition", EXAMPLES.values(), ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("state", OperationState)
@pytest.mark.parametrize("kind", OperationType)
def test_only_legal_transitions_change_the_state(
    kind: OperationType, state: OperationState, transition: Transition
) -> None:
    status = OperationStatus(state=state.value, stock=STOCK if kind is UNIT else None)
    expected = LEGAL.get((kind, state, type(transition)))
    if expected is None:
        with pytest.raises(IllegalTransition, match=state.value):
            next_status(kind, status, transition, NOW)
    else:
        assert next_status(kind, status, transition, NOW).state == expected


def running(**fields: Any) -> OperationStatus:
    return OperationStatus(state=RUNNING.value, started_at=EARLIER, **fields)


CHANGES: dict[str, tuple[OperationType, OperationStatus, Transition, dict[str, Any]]] = {
    "start": (SEED, OperationStatus(), CreationStarted(), {"state": "Running", "started_at": NOW}),
    "first stock": (
        UNIT,
        OperationStatus(),
        StockSelected(STOCK),
        {"state": "Running", "stock": STOCK, "attempt": 1, "started_at": NOW},
    ),
    "other stock": (
        UNIT,
        running(stock=STOCK, attempt=1),
        StockSelected(OTHER),
        {"stock": OTHER, "attempt": 2, "started_at": NOW},
    ),
    "stock lost: the attempt number stays, so that its objects are recognizable": (
        UNIT,
        running(stock=STOCK, attempt=2),
        StockLost(),
        {"state": "Accepted", "stock": None},
    ),
    "batch": (SEED, running(stock_uids=("a",)), StockSeeded(("a", "b")), {"stock_uids": ("a", "b")}),
    "seeded": (
        SEED,
        running(stock_uids=("a",)),
        Committed(("a", "b")),
        {"state": "Succeeded", "stock_uids": ("a", "b"), "finished_at": NOW},
    ),
    "unit": (
        UNIT,
        running(stock=STOCK, attempt=1),
        Committed(("unit",)),
        {"state": "Succeeded", "target_uid": "unit", "finished_at": NOW},
    ),
    "pool": (POOL, running(), Committed(("p",)), {"state": "Succeeded", "target_uid": "p", "finished_at": NOW}),
    "rollback keeps the stock, because its claim must be released": (
        UNIT,
        running(stock=STOCK, attempt=1),
        rollback(QuotaExceeded("too many")),
        {"state": "RollingBack", "error": ERROR},
    ),
    "rolled back": (
        SEED,
        OperationStatus(state="RollingBack", stock_uids=("a",), error=ERROR),
        RolledBack(),
        {"state": "Failed", "stock_uids": (), "finished_at": NOW},
    ),
}


@pytest.mark.parametrize(("kind", "before", "transition", "changes"), CHANGES.values(), ids=CHANGES)
def test_transition_changes_exactly_its_fields(
    kind: OperationType, before: OperationStatus, transition: Transition, changes: dict[str, Any]
) -> None:
    after = next_status(kind, before, transition, NOW)
    fields = before.__struct_fields__
    assert {name: getattr(after, name) for name in fields if getattr(after, name) != getattr(before, name)} == changes


@pytest.mark.parametrize(
    ("kind", "status", "transition"),
    [
        (UNIT, running(), Committed(("unit",))),
        (UNIT, running(stock=STOCK), Committed(())),
        (POOL, running(), Committed(("a", "b"))),
        (SEED, running(stock_uids=("a",)), StockSeeded(("b",))),
        (SEED, running(stock_uids=("a", "b")), Committed(("a",))),
    ],
)
def test_commit_must_fit_the_recorded_progress(
    kind: OperationType, status: OperationStatus, transition: Transition
) -> None:
    with pytest.raises(IllegalTransition):
        next_status(kind, status, transition, NOW)


def test_long_error_messages_are_cut_to_the_limit_of_the_resource() -> None:
    assert len(rollback(QuotaExceeded("x" * 10_000)).error.message) == 4096


def changes_of_state() -> set[tuple[str, str]]:
    """The pairs of different states before and after a transition."""
    return {
        (source.value, rule.target.value)
        for rule in TRANSITION_RULES.values()
        for source in rule.sources
        if source is not rule.target
    }


def test_documented_diagram_shows_every_transition() -> None:
    section = ARCHITECTURE.read_text().split("### Operation states")[1]
    diagram = section.split("```mermaid")[1].split("```")[0]
    drawn = set(re.findall(r"^ +(\w+) --> (\w+):", diagram, re.MULTILINE))
    assert drawn == changes_of_state()


def test_documented_table_shows_only_legal_changes_of_state_and_all_of_them() -> None:
    table = ARCHITECTURE.read_text().split("### Operation states")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| resume \|[^|]*\| ([^|]+) \|", table, re.MULTILINE)
    assert rows
    documented = {(source, target) for source, targets in rows for target in re.findall(r"[A-Z][A-Za-z]+", targets)}
    states = {state.value for state in OperationState}
    assert {each for pair in documented for each in pair} <= states
    assert {pair for pair in documented if pair[0] != pair[1]} == changes_of_state()
