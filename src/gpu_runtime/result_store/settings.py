"""Settings of the result store."""

from datetime import timedelta
from typing import Annotated

from msgspec import Meta

from gpu_runtime.process.settings import BaseSettings
from gpu_runtime.process.shared_settings import NatsSettings, ProcessSettings
from gpu_runtime.result_repository.repository import RetentionLimits

MIB = 1024**2


class DatabaseSettings(BaseSettings, frozen=True, kw_only=True):
    path: Annotated[str, Meta(min_length=1)] = "/var/lib/gpu-runtime/results.db"
    """Path of the database file, on a file system of one machine. The file is created if it does not exist; its
    directory must exist. A write-ahead log of up to 64 MiB is next to it. An installation must have only one database
    file: with two files, each would have a part of the results."""


class ResultRetentionSettings(BaseSettings, frozen=True, kw_only=True):
    max_age_seconds: Annotated[float, Meta(ge=60, le=10 * 365 * 86400)] = 7 * 86400
    """How long a result is retained after it was stored, in seconds. Older results are evicted."""

    max_bytes: Annotated[int, Meta(ge=MIB)] = 8 * 1024**3
    """Maximum size of the results in the database in bytes, including indexes. Above it, the oldest results are evicted
    before their maximum age. Set it at least 512 MiB below the size of the volume."""

    @property
    def limits(self) -> RetentionLimits:
        return RetentionLimits(timedelta(seconds=self.max_age_seconds), self.max_bytes)


class ResultStoreSettings(ProcessSettings, frozen=True, kw_only=True):
    nats: NatsSettings = NatsSettings()
    """Connection to NATS, and limits of the streams. The body of a result is truncated to streams.maxPayloadBytes."""

    database: DatabaseSettings = DatabaseSettings()
    """Database in which the results are stored."""

    retention: ResultRetentionSettings = ResultRetentionSettings()
    """Limits on the age and the total size of stored results."""

    batch_size: Annotated[int, Meta(ge=1, le=1024)] = 128
    """Maximum number of results that are processed concurrently and stored in one transaction. Each may need twice
    streams.maxPayloadBytes of memory."""
