"""The view of a condition in API responses. Pure functions."""

from typing import Literal

from msgspec import structs

from gpu_runtime.kube.meta import Condition
from gpu_runtime.runtime_api.http.route import View


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
