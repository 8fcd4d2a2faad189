"""What the settings of the platform allow in the pods of users."""

from dataclasses import dataclass

DEFAULT_WORKER_CEILING = 100
"""Default of the maximum number of workers of each function."""


@dataclass(frozen=True)
class PodPolicy:
    require_non_root: bool = False
    max_termination_grace_period_seconds: int = 3600
    max_workers_per_function: int | None = None
    """None: the process does not check the number. The controller manager does not check it, because the activator
    limits the workers of a function that exceeds the maximum."""


DEFAULT_POD_POLICY = PodPolicy()
