"""What the settings of the platform allow in the pods of users."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PodPolicy:
    require_non_root: bool = False
    max_termination_grace_period_seconds: int = 3600


DEFAULT_POD_POLICY = PodPolicy()
