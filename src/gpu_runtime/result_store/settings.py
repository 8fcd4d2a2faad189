"""The settings of the result store."""

from datetime import timedelta
from typing import Annotated

from msgspec import Meta

from gpu_runtime.process.settings import BaseSettings
from gpu_runtime.process.shared_settings import NatsSettings, ProcessSettings
from gpu_runtime.result_repository.repository import RetentionLimits

MIB = 1024**2


class DatabaseSettings(BaseSettings, frozen=True, kw_only=True):
    path: Annotated[str, Meta(min_length=1)] = "/var/lib/gpu-runtime/results.db"
    """The file with the results, on a volume of one machine. It is made where there is none; its folder must be there.
    A log of up to some dozen MiB lies beside it. One file per installation: two processes with a file each would each
    have some of the results."""


class ResultRetentionSettings(BaseSettings, frozen=True, kw_only=True):
    max_age_seconds: Annotated[float, Meta(ge=60, le=10 * 365 * 86400)] = 7 * 86400
    """How long a result is kept after it was stored."""

    max_bytes: Annotated[int, Meta(ge=MIB)] = 8 * 1024**3
    """How much the results may need, indexes included. Beyond that the oldest are forgotten before their time. Keep it
    some hundred MiB below the size of the volume."""

    @property
    def limits(self) -> RetentionLimits:
        return RetentionLimits(timedelta(seconds=self.max_age_seconds), self.max_bytes)


class ResultStoreSettings(ProcessSettings, frozen=True, kw_only=True):
    nats: NatsSettings = NatsSettings()
    """How NATS is reached, and what its streams keep. A result's body that is larger than streams.bodyBytes is cut."""

    database: DatabaseSettings = DatabaseSettings()
    """Where results are stored."""

    retention: ResultRetentionSettings = ResultRetentionSettings()
    """How long they are kept."""

    batch_size: Annotated[int, Meta(ge=1, le=1024)] = 128
    """How many results are in hand at once, and stored in one transaction. Each may need twice the largest body."""
