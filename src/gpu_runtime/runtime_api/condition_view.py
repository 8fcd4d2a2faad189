"""A condition as callers see it. Pure."""

from typing import Literal

from gpu_runtime.kube.meta import Condition
from gpu_runtime.runtime_api.http.route import View


class ConditionView(View, frozen=True, kw_only=True):
    """One aspect of an object's state."""

    type: str
    """The aspect, for example Ready."""

    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""

    reason: str = ""
    """Why, as one word for programs."""

    message: str = ""
    """Why, as a sentence for people."""

    last_transition_time: str | None = None
    """When status last changed."""

    observed_generation: int = 0
    """The generation that the condition speaks of."""


def condition_view(found: Condition) -> ConditionView:
    return ConditionView(
        type=found.type,
        status=_STATUSES.get(found.status, "Unknown"),
        reason=found.reason,
        message=found.message,
        last_transition_time=found.last_transition_time,
        observed_generation=found.observed_generation,
    )


_STATUSES: dict[str, Literal["True", "False", "Unknown"]] = {"True": "True", "False": "False"}
