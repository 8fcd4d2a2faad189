"""Settings of the result store."""

from datetime import timedelta
from typing import Annotated

from msgspec import Meta

from gpu_runtime.process.settings import BaseSettings
from gpu_runtime.process.shared_settings import NatsSettings, ProcessSettings, TicketSettings
from gpu_runtime.result_repository.repository import RetentionLimits

MIB = 1024**2


class DatabaseSettings(BaseSettings, frozen=True, kw_only=True):
    path: Annotated[str, Meta(min_length=1)] = "/var/lib/gpu-runtime/results.db"
    """Path of the database file. The file must be on a local file system, for example on a mounted block volume, and
    not on a network file system. The directory of the file must exist. If the file does not exist, the result store
    creates the file. The directory also contains a write-ahead log of up to 64 MiB. An installation must have only one
    database file, because each of two files would contain only a part of the results."""


class ResultRetentionSettings(BaseSettings, frozen=True, kw_only=True):
    max_age_seconds: Annotated[float, Meta(ge=60, le=10 * 365 * 86400)] = 7 * 86400
    """Time in seconds for which a stored result is retained. The result store evicts older results. The value must be
    at least nats.streams.recordRetentionSeconds."""

    max_bytes: Annotated[int, Meta(ge=MIB)] = 8 * 1024**3
    """Maximum size in bytes of the results in the database, including indexes. Above this size, the result store evicts
    results before they reach maxAgeSeconds: the oldest results of the function with the most bytes. Set this size at
    least 512 MiB lower than the size of the volume."""

    @property
    def limits(self) -> RetentionLimits:
        return RetentionLimits(timedelta(seconds=self.max_age_seconds), self.max_bytes)


class ResultStoreSettings(ProcessSettings, frozen=True, kw_only=True):
    nats: NatsSettings = NatsSettings()
    """Connection to NATS, and limits of the streams. The result store truncates the body of a result to
    nats.streams.maxPayloadBytes."""

    tickets: TicketSettings = TicketSettings()
    """Keys of invocation tickets. The result store stores only results that have a valid ticket."""

    database: DatabaseSettings = DatabaseSettings()
    """Database in which the results are stored."""

    retention: ResultRetentionSettings = ResultRetentionSettings()
    """Limits on the age and the total size of stored results."""

    batch_size: Annotated[int, Meta(ge=1, le=1024)] = 128
    """Maximum number of results that the result store processes concurrently and stores in one transaction. Each of
    these results may need twice nats.streams.maxPayloadBytes of memory."""
