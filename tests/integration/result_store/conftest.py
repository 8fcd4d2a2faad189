"""Fixtures: a result store with its own database file and NATS account, and a harness that publishes and queries."""

import asyncio
import re
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml
from aiohttp import ClientError, ClientSession

from gpu_runtime.contract.messages.invocation_record import InvocationRecord, RecordAtRevision, record_headers
from gpu_runtime.contract.messages.invocation_ticket import ticket_headers
from gpu_runtime.contract.messages.message_codec import Message, decode, encode, to_utc_milliseconds
from gpu_runtime.contract.messages.result import Result, ResultState, Timings, with_body
from gpu_runtime.contract.messages.result_query import (
    RESULT_QUERY,
    RESULTS_QUERY,
    GetResultRequest,
    GetResultResponse,
    ListResultsRequest,
    ListResultsResponse,
)
from gpu_runtime.contract.messages.streams import StreamLimits, StreamTopology
from gpu_runtime.jetstream.api import api_request
from gpu_runtime.jetstream.connection import NatsConnection, connect_nats
from gpu_runtime.jetstream.connection_options import ConnectionOptions
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.jetstream.kv import KeyValueBucket
from gpu_runtime.jetstream.publisher import PubAck, Publisher
from gpu_runtime.jetstream.stream_admin import ensure_with_retry
from gpu_runtime.process.settings import parse_settings
from gpu_runtime.result_store.main import run_result_store
from gpu_runtime.result_store.settings import ResultStoreSettings
from localcluster.free_ports import free_port
from localcluster.nats_server import NatsAccount
from tests.bulk_publish import publish_many
from tests.ticket_keys import TICKET_SECTION, TICKETS

GPU_RUNTIME_PROGRAM = Path(sys.executable).with_name("gpu-runtime")
NOW = to_utc_milliseconds(datetime.now(UTC))
MIB = 1024**2
STREAMS: dict[str, int | str] = {"resultAckWaitSeconds": 3, "maxStreamBytes": 256 * MIB, "maxDeadLetterBytes": 64 * MIB}
"""Small streams, because the server reserves the maximum size of every stream."""
TOPOLOGY = StreamTopology(
    limits=StreamLimits(result_ack_wait_seconds=3, max_bytes=256 * MIB, dead_letter_max_bytes=64 * MIB)
)

NEW_RECORD = InvocationRecord(
    request_hash="hash",
    serverless_request_id="thumbs",
    function_id="thumbs",
    enqueued_at=NOW,
    deadline=NOW + timedelta(minutes=1),
    updated_at=NOW,
)

M = TypeVar("M", bound=Message)


@dataclass
class InProcessResultStore:
    """A result store in the process of the test, which starts quickly."""

    folder: Path
    url: str
    port: int = field(default_factory=free_port)
    streams: dict[str, int | str] = field(default_factory=lambda: dict(STREAMS))
    retention: dict[str, int] = field(default_factory=dict)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _running: "asyncio.Task[None] | None" = None

    @property
    def database(self) -> Path:
        return self.folder / "results.db"

    @property
    def settings(self) -> str:
        return yaml.safe_dump(
            {
                "health": {"bindAddress": f"127.0.0.1:{self.port}"},
                "nats": {"urls": [self.url], "streams": self.streams},
                "database": {"path": str(self.database)},
                "retention": self.retention,
                **TICKET_SECTION,
            }
        )

    def start(self) -> None:
        self._running = asyncio.create_task(
            run_result_store(parse_settings(self.settings, ResultStoreSettings), self._stopping)
        )

    async def stop(self) -> None:
        self._stopping.set()
        await self.wait_stopped()

    async def wait_stopped(self) -> None:
        """Wait until it has stopped, and raise its error."""
        if self._running is not None:
            running, self._running = self._running, None
            async with asyncio.timeout(60):
                await running

    async def request(self, path: str) -> tuple[int, str]:
        """Return status and body of an endpoint. The status is 0 if there is no response."""
        try:
            async with ClientSession() as client, client.get(f"http://127.0.0.1:{self.port}{path}") as response:
                return response.status, await response.text()
        except ClientError:
            return 0, ""

    async def is_ready(self) -> bool:
        return (await self.request("/readyz"))[0] == 200

    async def metric_value(self, metric: str) -> float:
        lines = (await self.request("/metrics"))[1].splitlines()
        return sum(float(line.split()[-1]) for line in lines if re.match(rf"{metric}[ {{]", line))


@dataclass
class ResultStoreProcess(InProcessResultStore):
    """A result store in its own process, which a test can kill and start again with the same file."""

    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        config = self.folder / "result-store.yaml"
        config.write_text(self.settings)
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen([GPU_RUNTIME_PROGRAM, "result-store", "--config", config], stderr=log)

    async def stop(self) -> None:
        assert await self.stop_with(signal.SIGTERM) == 0

    async def stop_with(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        status = await asyncio.to_thread(self.process.wait, 60)
        self.process = None
        return status

    @contextmanager
    def unwritable_disk(self) -> Iterator[None]:
        """Make all file writes of the process fail for the duration of the block."""
        assert self.process is not None
        limits = resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (1, limits[1]))
        yield
        if self.process is not None:
            resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, limits)


@pytest.fixture
async def store(tmp_path: Path, nats_account: NatsAccount) -> AsyncIterator[InProcessResultStore]:
    """A result store that is not started."""
    store = InProcessResultStore(tmp_path, nats_account.url)
    yield store
    await store.stop()


@pytest.fixture
async def store_process(tmp_path: Path, nats_account: NatsAccount) -> AsyncIterator[ResultStoreProcess]:
    """A result store that is not started."""
    store = ResultStoreProcess(tmp_path, nats_account.url)
    yield store
    if store.process is not None:
        await store.stop_with(signal.SIGKILL)


async def until(condition: Callable[[], Awaitable[bool]], description: str, within: float = 60) -> None:
    try:
        async with asyncio.timeout(within):
            while not await condition():  # noqa: ASYNC110 - the condition depends on another process
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"condition not met within {within:g} s: {description}") from None


@dataclass(frozen=True)
class ResultStoreHarness:
    """Clients of the result store: publishes results, creates records, and queries results."""

    nats: NatsConnection
    topology: StreamTopology = TOPOLOGY

    @property
    def publisher(self) -> Publisher:
        return Publisher(self.nats)

    @property
    def records(self) -> KeyValueBucket:
        return KeyValueBucket(self.nats, self.publisher, self.topology.record_bucket)

    async def create_record(self, invocation_id: str, record: InvocationRecord = NEW_RECORD) -> RecordAtRevision:
        """Create the record of an invocation."""
        revision = await self.records.create(invocation_id, encode(record))
        assert revision is not None
        return RecordAtRevision(record, revision)

    def ticket_headers(self, invocation_id: str, record: InvocationRecord = NEW_RECORD) -> dict[str, str]:
        """Return the header with the ticket of an invocation."""
        return ticket_headers(TICKETS.sign_record(invocation_id, record))

    async def record(self, invocation_id: str) -> InvocationRecord | None:
        entry = await self.records.get(invocation_id)
        return decode(entry.value, InvocationRecord) if entry else None

    async def publish_results(self, results: Iterable[Result], record: RecordAtRevision | None = None) -> None:
        subject, accepted = self.topology.subjects.result("thumbs"), record.record if record else NEW_RECORD
        outcomes = await publish_many(
            self.publisher,
            (
                OutgoingMessage(
                    subject,
                    encode(each),
                    "",
                    record_headers(record) | self.ticket_headers(each.invocation_id, accepted),
                )
                for each in results
            ),
        )
        assert all(isinstance(each, PubAck) for each in outcomes)

    async def backlog(self) -> int:
        """Return the number of results that are not acknowledged."""
        info = await api_request(self.nats, f"STREAM.INFO.{self.topology.result_consumer.stream}")
        count: int = info["state"]["messages"]
        return count

    async def wait_empty(self, within: float = 60) -> None:
        async def is_empty() -> bool:
            return await self.backlog() == 0

        await until(is_empty, "every result is acknowledged", within)

    async def get_result(self, invocation_id: str) -> Result | None:
        response = await self._query(RESULT_QUERY, GetResultRequest(invocation_id=invocation_id), GetResultResponse)
        assert not response.error
        return response.result

    async def list_page(self, **fields: Any) -> ListResultsResponse:
        request = ListResultsRequest(serverless_request_id="thumbs", **fields)
        return await self._query(RESULTS_QUERY, request, ListResultsResponse)

    async def list_all(self) -> list[Result]:
        """Return the results of all pages."""
        page = await self.list_page(limit=500)
        results = list(page.results)
        while page.continue_token:
            page = await self.list_page(limit=500, continue_token=page.continue_token)
            results += page.results
        return results

    async def _query(self, query: str, request: Message, model: type[M]) -> M:
        subject = self.topology.subjects.query(query)
        return decode((await self.nats.request(subject, encode(request), timeout_seconds=60)).data, model)


@pytest.fixture
async def harness(nats_account: NatsAccount) -> AsyncIterator[ResultStoreHarness]:
    async with connect_nats(ConnectionOptions((nats_account.url,), request_timeout=30)) as nats:
        await nats.wait_connected(60)
        harness = ResultStoreHarness(nats)
        topology = harness.topology
        await ensure_with_retry(nats, topology.streams, [topology.record_bucket], tuple(topology.shared_consumers()))
        yield harness


def result(invocation_id: str, state: ResultState = ResultState.SUCCEEDED, body: bytes = b"answer") -> Result:
    without_body = Result(
        invocation_id=invocation_id,
        serverless_request_id="thumbs",
        function_id="thumbs",
        state=state,
        timings=Timings(enqueued_at=NOW, finished_at=NOW),
        worker="thumbs-1",
        attempts=1,
    )
    return with_body(without_body, "text/plain", body)
