"""The result store: connect, open the database, store what comes, answer look-ups, and end with nothing in hand.

Health answers at once; it is ready while the queue is consumed and the database takes what comes.
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

from gpu_runtime.backoff import Backoff
from gpu_runtime.contract.errors import Rejected
from gpu_runtime.contract.messages.result_query import RESULT, RESULTS
from gpu_runtime.contract.messages.streams import Topology
from gpu_runtime.jetstream.connection import Connection, connection
from gpu_runtime.jetstream.errors import StreamError
from gpu_runtime.jetstream.kv import Bucket
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.pull_consumer import Consumption, Policy
from gpu_runtime.jetstream.request_reply import answering
from gpu_runtime.jetstream.stream_admin import ensure_until_done
from gpu_runtime.process.health_server import Check, serve_endpoints
from gpu_runtime.process.metrics import new_registry
from gpu_runtime.process.nats_setup import fault_of, options_of, topology_of
from gpu_runtime.result_repository.errors import Unfit, Unusable
from gpu_runtime.result_repository.repository import Results
from gpu_runtime.result_repository.sqlite_repository import opened
from gpu_runtime.result_store.batch_writer import Batches
from gpu_runtime.result_store.metrics import StoreMetrics
from gpu_runtime.result_store.query_handler import LookUps
from gpu_runtime.result_store.record_finisher import Records
from gpu_runtime.result_store.result_consumer import Storing
from gpu_runtime.result_store.result_retention import Forgetting
from gpu_runtime.result_store.settings import ResultStoreSettings

logger = logging.getLogger(__name__)

NAME = "result-store"

_PAUSES = Backoff(first=0.2, longest=5.0)

T = TypeVar("T")


class Store:
    """The parts of this process: what stores, what answers, and what forgets."""

    def __init__(
        self, settings: ResultStoreSettings, nats: Connection, results: Results, metrics: StoreMetrics
    ) -> None:
        self._nats, self._topology = nats, topology_of(settings.nats)
        publisher = Publisher(nats)
        self.batches = Batches(results, settings.batch_size, metrics)
        storing = Storing(
            self.batches,
            Records(Bucket(nats, publisher, self._topology.state)),
            self._topology.subjects,
            settings.nats.streams.body_bytes,
            metrics,
        )
        # For ever: a result that is given up because a disk was full for long would be a promise broken.
        policy = Policy(at_once=settings.batch_size, attempts=None)
        self.consumption = Consumption(publisher, self._topology.storing, storing.handle, storing.abandon, policy)
        self._look_ups = LookUps(results, metrics)
        self._forgetting = Forgetting(results, settings.retention.keeping, metrics)

    async def run(self, stopping: asyncio.Event) -> None:
        subjects = self._topology.subjects
        async with (
            answering(self._nats, subjects.query(RESULT), self._look_ups.result, group=NAME),
            answering(self._nats, subjects.query(RESULTS), self._look_ups.page, group=NAME),
            asyncio.TaskGroup() as tasks,
        ):
            beside = [tasks.create_task(self.batches.run(stopping)), tasks.create_task(self._forgetting.run())]
            await self.consumption.run(stopping)
            for task in beside:
                task.cancel()


class Readiness:
    """What is not well, as far as the process has come."""

    def __init__(self, nats: Connection) -> None:
        self.opening: str | None = "the database is not open yet"
        self.store: Store | None = None
        self.checks: Mapping[str, Check] = {"nats": nats.problem, "database": self._database, "queue": self._queue}

    def _database(self) -> str | None:
        return self.store.batches.problem if self.store else self.opening

    def _queue(self) -> str | None:
        return self.store.consumption.problem() if self.store else "the streams are not made yet"


async def keep(settings: ResultStoreSettings, stopping: asyncio.Event) -> None:
    """Store results and answer look-ups until told to stop."""
    try:
        await _keep(settings, stopping)
    except StreamError as error:  # what waiting does not mend: the settings, or streams that do not fit them
        raise fault_of(error) from error


async def _keep(settings: ResultStoreSettings, stopping: asyncio.Event) -> None:
    registry = new_registry(NAME)
    async with connection(options_of(settings.nats, NAME)) as nats, AsyncExitStack() as stack:
        readiness = Readiness(nats)
        await stack.enter_async_context(serve_endpoints(settings.endpoints, registry, stopping, readiness.checks))
        results = await _before(stopping, _open_until_done(stack, Path(settings.database.path), readiness))
        if results is not None and await _before(stopping, _make_streams(nats, topology_of(settings.nats))):
            readiness.store = Store(settings, nats, results, StoreMetrics(registry))
            await readiness.store.run(stopping)


async def _open_until_done(stack: AsyncExitStack, path: Path, readiness: Readiness) -> Results:
    """Open the database, waiting for a disk that has no room. What waiting does not mend is for the operator."""
    failures = 0
    while True:
        try:
            results = await stack.enter_async_context(opened(path))
        except Unfit as error:
            raise Rejected(str(error)) from error
        except Unusable as error:
            readiness.opening = f"the database cannot be opened: {error}"
            logger.warning("%s", readiness.opening)
        else:
            readiness.opening = None
            return results
        failures += 1
        await asyncio.sleep(_PAUSES.delay(failures))


async def _make_streams(nats: Connection, topology: Topology) -> bool:
    await ensure_until_done(nats, topology.streams, [topology.state], tuple(topology.consumers()))
    return True


async def _before(stopping: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """What the work gives; None where the process is told to stop before it has ended."""
    working, told = asyncio.create_task(work), asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait({working, told}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (working, told):
            task.cancel()
        await asyncio.wait({working, told})
    return None if working.cancelled() else working.result()
