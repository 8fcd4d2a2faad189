"""docs/reference/conditions.md: reasons of the Ready condition and Events, with cause and remedy."""

from collections.abc import Iterator, Mapping

from docgen.condition_guide import EVENTS, REASONS, ReasonGuide
from docgen.markdown import code, page, table
from gpu_runtime.contract.crd.conditions import READY_CONDITION, ReadyReason, ready_condition
from gpu_runtime.controller_manager.workload.status_writer import is_normal


def conditions_page() -> str:
    if missing := set(ReadyReason) - {reason for guides in REASONS.values() for reason in guides}:
        raise LookupError(f"reasons without cause and remedy: {sorted(missing)}")
    introduction = (
        f"Every GPUUnit, StockPool and GPUStorage has one condition, `{READY_CONDITION}`. The reason of the condition is for programs,"
        " and the meaning of a reason never changes. The message is for people. `kubectl describe` shows the reason and the message. When the reason"
        " changes, the controller also writes an Event with the new reason. If the reason reports a problem and only the message"
        " changes, the controller writes another Event with the same reason. The controller reconciles an object immediately after"
        " a change of the object."
    )
    return page(
        "Conditions and Events",
        introduction,
        *(f"## {kind}\n\n{_table(guides)}" for kind, guides in REASONS.items()),
        f"## Other Events\n\n{table(('reason', 'object', 'type', 'cause', 'remedy'), _events())}",
    )


def _table(guides: Mapping[ReadyReason, ReasonGuide]) -> str:
    rows = [
        (code(reason.value), guide.phase, _event_type(reason, guide), guide.cause, guide.remedy, guide.meanwhile)
        for reason, guide in guides.items()
    ]
    return table(("reason", "phase", "Event type", "cause", "remedy", "effect and recovery"), rows)


def _event_type(reason: ReadyReason, guide: ReasonGuide) -> str:
    is_ready = guide.phase == "Ready" and reason.value.endswith("Ready")
    return "Normal" if is_normal(ready_condition(is_ready, reason, "", 1)) else "Warning"


def _events() -> Iterator[tuple[str, ...]]:
    for reason, row in EVENTS.items():
        yield code(reason), *row
