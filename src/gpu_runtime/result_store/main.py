"""Assembles and runs the result store: opens the database, stores results, answers queries, evicts old results.

The health endpoint answers from the start. The process is ready while it consumes the RESULT stream and the database
accepts writes. On shutdown, the process finishes every message that it has pulled, or naks it for another replica.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import TypeVar

from gpu_runtime.backoff import Backoff
from gpu_runtime.contract.errors import Rejected
from gpu_runtime.contract.messages.result_query import RESULT_COUNT_QUERY, RESULT_QUERY, RESULTS_QUERY
from gpu_runtime.invocation_records.ignored_messages import IgnoredMessages
from gpu_runtime.invocation_records.record_store import InvocationRecordStore
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.kv import KeyValueBucket
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.pull_consumer import ConsumeOptions, PullConsumer
from gpu_runtime.jetstream.request_reply import RequestHandler, serve_requests
from gpu_runtime.jetstream.stream_admin import ensure_with_retry
from gpu_runtime.process.health_server import HealthCheck, serve_health
from gpu_runtime.process.metrics import new_registry
from gpu_runtime.process.nats_setup import connect_nats_or_fault, nats_options, stream_topology
from gpu_runtime.process.runner import run_process, unless_stopped
from gpu_runtime.process.ticket_key_file import TicketKeyFile
from gpu_runtime.result_repository.errors import RepositoryIncompatible, RepositoryUnavailable
from gpu_runtime.result_repository.repository import ResultRepository
from gpu_runtime.result_repository.sqlite_repository import open_repository
from gpu_runtime.result_store.batch_writer import BatchWriter
from gpu_runtime.result_store.eviction_loop import ResultEvictor
from gpu_runtime.result_store.metrics import ResultStoreMetrics
from gpu_runtime.result_store.query_handler import ResultQueryHandler
from gpu_runtime.result_store.result_consumer import ResultConsumer
from gpu_runtime.result_store.settings import ResultStoreSettings

logger = logging.getLogger(__name__)

PROCESS_NAME = "result-store"

_OPEN_BACKOFF = Backoff(initial_seconds=0.2, max_seconds=5.0)

T = TypeVar("T")


class ResultStore:
    """The components of this process: consumer, query handler and evictor."""

    def __init__(
        self,
        settings: ResultStoreSettings,
        nats: NatsConnection,
        results: ResultRepository,
        metrics: ResultStoreMetrics,
        key_file: TicketKeyFile,
    ) -> None:
        self._nats, self._topology, self._key_file = nats, stream_topology(settings.nats), key_file
        publisher = Publisher(nats)
        self.batch_writer = BatchWriter(results, settings.batch_size, metrics)
        consumer = ResultConsumer(
            self.batch_writer,
            InvocationRecordStore(KeyValueBucket(nats, publisher, self._topology.record_bucket)),
            publisher,
            self._topology.subjects,
            settings.nats.streams.max_payload_bytes,
            metrics,
            key_file.keyring,
            IgnoredMessages(metrics.ignored_messages),
        )
        # No delivery limit: a result must not be dead-lettered because the disk was full for a long time.
        options = ConsumeOptions(max_in_flight=settings.batch_size, max_deliveries=None)
        self.consumer = PullConsumer(
            nats, self._topology.result_consumer, consumer.handle, consumer.on_dead_letter, options
        )
        self._query_handler = ResultQueryHandler(results, metrics)
        self._evictor = ResultEvictor(results, settings.retention.limits, metrics)

    async def run(self, stopping: asyncio.Event) -> None:
        async with (
            self._serve(RESULT_QUERY, self._query_handler.find_result),
            self._serve(RESULTS_QUERY, self._query_handler.list_results),
            self._serve(RESULT_COUNT_QUERY, self._query_handler.count_results),
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(self._key_file.watch(stopping))
            background = [tasks.create_task(self.batch_writer.run(stopping)), tasks.create_task(self._evictor.run())]
            await self.consumer.run(stopping)
            for task in background:
                task.cancel()

    def _serve(self, query: str, handler: RequestHandler) -> AbstractAsyncContextManager[None]:
        return serve_requests(self._nats, self._topology.subjects.query(query), handler, queue_group=PROCESS_NAME)


class ResultStoreReadiness:
    """The readiness checks. Before the components exist, the checks report which startup step is not done."""

    def __init__(self, nats: NatsConnection) -> None:
        self.open_problem: str | None = "database not open yet"
        self.store: ResultStore | None = None
        self.checks: Mapping[str, HealthCheck] = {
            "nats": nats.problem,
            "database": lambda: self.store.batch_writer.problem if self.store else self.open_problem,
            "consumer": lambda: self.store.consumer.problem() if self.store else "streams not created yet",
        }


def main(config: Path) -> int:
    return run_process(config, ResultStoreSettings, run_result_store)


async def run_result_store(settings: ResultStoreSettings, stopping: asyncio.Event) -> None:
    """Store results and answer queries until `stopping` is set."""
    registry, topology = new_registry(PROCESS_NAME), stream_topology(settings.nats)
    key_file = TicketKeyFile(settings.tickets)
    async with connect_nats_or_fault(nats_options(settings.nats, PROCESS_NAME)) as nats, AsyncExitStack() as stack:
        readiness = ResultStoreReadiness(nats)
        await stack.enter_async_context(serve_health(settings.health, registry, stopping, readiness.checks))
        results = await unless_stopped(stopping, _open_with_retry(stack, Path(settings.database.path), readiness))
        await unless_stopped(
            stopping,
            ensure_with_retry(nats, topology.streams, [topology.record_bucket], tuple(topology.shared_consumers())),
        )
        if results is not None and not stopping.is_set():
            readiness.store = ResultStore(settings, nats, results, ResultStoreMetrics(registry), key_file)
            await readiness.store.run(stopping)


async def _open_with_retry(stack: AsyncExitStack, path: Path, readiness: ResultStoreReadiness) -> ResultRepository:
    """Open the database. Retry while it is unavailable, for example because the disk is full.

    Raise Rejected if the file is incompatible: a retry does not help.
    """
    failures = 0
    while True:
        try:
            results = await stack.enter_async_context(open_repository(path))
        except RepositoryIncompatible as error:
            raise Rejected(str(error)) from error
        except RepositoryUnavailable as error:
            readiness.open_problem = f"the database cannot be opened: {error}"
            logger.warning(
                "database could not be opened; the result store will retry",
                extra={"file": str(path), "error": str(error)},
            )
        else:
            readiness.open_problem = None
            return results
        failures += 1
        await asyncio.sleep(_OPEN_BACKOFF.delay(failures))
