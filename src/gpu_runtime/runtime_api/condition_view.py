"""The views of phases and conditions in API responses. Pure functions."""

from enum import StrEnum
from typing import Literal, TypeVar

from msgspec import structs

from gpu_runtime.contract.crd.conditions import READY_CONDITION, find_condition
from gpu_runtime.kube.meta import Condition
from gpu_runtime.runtime_api.http.route import View

P = TypeVar("P", bound=StrEnum)


class ConditionView(View, frozen=True, kw_only=True):
    """One aspect of an object's state."""

    type: str
    """The aspect, for example Ready."""

    status: Literal["True", "False", "Unknown"]
    """Whether the condition is met."""

    reason: str = ""
    """The reason for the status, as one CamelCase word for programs."""

    message: str = ""
    """The reason for the status, as a sentence for people."""

    last_transition_time: str | None = None
    """When the status last changed."""

    observed_generation: int = 0
    """The generation of the object that the condition describes."""


def condition_view(condition: Condition) -> ConditionView:
    status = condition.status if condition.status in ("True", "False") else "Unknown"
    return ConditionView(**structs.asdict(condition) | {"status": status})


def ready_condition(conditions: tuple[Condition, ...]) -> Condition:
    """Return the Ready condition. Before the first reconcile, it is unknown and has no reason."""
    return find_condition(conditions, READY_CONDITION) or Condition(type=READY_CONDITION, status="Unknown")


def known_phase(phase: str | None, default: P) -> P:
    """Return the phase of a status, or the default if the phase is missing or this version does not know it."""
    try:
        return type(default)(phase or default)
    except ValueError:
        return default
