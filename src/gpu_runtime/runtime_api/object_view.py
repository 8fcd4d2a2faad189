"""The fields that the views of units, storages and pools share. Pure functions."""

from typing import Any, Literal

from msgspec import structs

from gpu_runtime.contract.crd.conditions import current_ready_condition
from gpu_runtime.contract.crd.gpu_storage import GPUStorage
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.stock_pool import StockPool
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


def common_fields(found: GPUUnit | GPUStorage | StockPool) -> dict[str, Any]:
    """Return the fields that describe the object itself and its Ready condition."""
    metadata, ready = found.metadata, current_ready_condition(found.status.conditions)
    return {
        "name": metadata.name,
        "namespace": metadata.namespace,
        "reason": ready.reason,
        "message": ready.message,
        "observed_generation": found.status.observed_generation,
        "generation": metadata.generation,
        "created_at": metadata.creation_timestamp,
        "deleting": metadata.deletion_timestamp is not None,
    }


def is_ready(found: GPUUnit | GPUStorage) -> bool:
    return current_ready_condition(found.status.conditions).status == "True"
