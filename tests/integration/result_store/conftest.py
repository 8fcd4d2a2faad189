"""A result store with a file and a NATS account of the test's own, and what stands around it."""

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

from gpu_runtime.contract.messages.invocation_record import InvocationRecord, Known, headers_of
from gpu_runtime.contract.messages.message_codec import Message, decode, encode, utc
from gpu_runtime.contract.messages.result import Result, ResultState, Timings, with_body
from gpu_runtime.contract.messages.result_query import (
    RESULT,
    RESULTS,
    FindResult,
    FoundResult,
    ListedResults,
    ListResults,
)
from gpu_runtime.contract.messages.streams import Keeping, Topology
from gpu_runtime.jetstream.api import call
from gpu_runtime.jetstream.connection import Connection, connection
from gpu_runtime.jetstream.connection_options import Options
from gpu_runtime.jetstream.delivery import Outgoing
from gpu_runtime.jetstream.kv import Bucket
from gpu_runtime.jetstream.publisher import Publisher, Stored
from gpu_runtime.jetstream.request_reply import ask
from gpu_runtime.jetstream.stream_admin import ensure_until_done
from gpu_runtime.process.settings import parse
from gpu_runtime.result_store.main import keep
from gpu_runtime.result_store.settings import ResultStoreSettings
from localcluster.control_plane import free_port
from localcluster.nats_server import Account

PROGRAM = Path(sys.executable).with_name("gpu-runtime")
NOW = utc(datetime.now(UTC))
MIB = 1024**2
STREAMS: dict[str, int | str] = {"resultAckWaitSeconds": 3, "queueBytes": 256 * MIB, "deadLetterBytes": 64 * MIB}
"""Small: what a stream may hold, its server sets aside."""
TOPOLOGY = Topology(keeping=Keeping(result_ack_wait=3, queue_bytes=256 * MIB, dead_letter_bytes=64 * MIB))

M = TypeVar("M", bound=Message)


@dataclass
class Store:
    """A result store in the test's own process, which is quickly there."""

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
                "endpoints": {"bind": f"127.0.0.1:{self.port}"},
                "nats": {"urls": [self.url], "streams": self.streams},
                "database": {"path": str(self.database)},
                "retention": self.retention,
            }
        )

    def start(self) -> None:
        self._running = asyncio.create_task(keep(parse(self.settings, ResultStoreSettings), self._stopping))

    async def stop(self) -> None:
        self._stopping.set()
        await self.ended()

    async def ended(self) -> None:
        """Wait for its end, and raise what it ended with."""
        if self._running is not None:
            running, self._running = self._running, None
            async with asyncio.timeout(60):
                await running

    async def ask(self, path: str) -> tuple[int, str]:
        """The answer of an endpoint; 0 where none comes."""
        try:
            async with ClientSession() as client, client.get(f"http://127.0.0.1:{self.port}{path}") as answer:
                return answer.status, await answer.text()
        except ClientError:
            return 0, ""

    async def is_ready(self) -> bool:
        return (await self.ask("/readyz"))[0] == 200

    async def count(self, metric: str) -> float:
        lines = (await self.ask("/metrics"))[1].splitlines()
        return sum(float(line.split()[-1]) for line in lines if re.match(rf"{metric}[ {{]", line))


@dataclass
class MortalStore(Store):
    """A result store as a process of its own, which can be killed and started again on the same file."""

    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        config = self.folder / "result-store.yaml"
        config.write_text(self.settings)
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen([PROGRAM, "result-store", "--config", config], stderr=log)

    async def stop(self) -> None:
        assert await self.end(signal.SIGTERM) == 0

    async def end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        status = await asyncio.to_thread(self.process.wait, 60)
        self.process = None
        return status

    @contextmanager
    def unwritable_disk(self) -> Iterator[None]:
        """No write to any file succeeds, for the length of the block or of the process."""
        assert self.process is not None
        limits = resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (1, limits[1]))
        yield
        if self.process is not None:
            resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, limits)


@pytest.fixture
async def store(tmp_path: Path, nats_account: Account) -> AsyncIterator[Store]:
    """Not started yet."""
    made = Store(tmp_path, nats_account.url)
    yield made
    await made.stop()


@pytest.fixture
async def mortal(tmp_path: Path, nats_account: Account) -> AsyncIterator[MortalStore]:
    """Not started yet."""
    made = MortalStore(tmp_path, nats_account.url)
    yield made
    if made.process is not None:
        await made.end(signal.SIGKILL)


async def until(condition: Callable[[], Awaitable[bool]], what: str, within: float = 60) -> None:
    try:
        async with asyncio.timeout(within):
            while not await condition():  # noqa: ASYNC110 - the world outside sends no events
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {within:g} s: {what}") from None


@dataclass(frozen=True)
class Plane:
    """What stands around the result store: whoever sends results, keeps records, and looks results up."""

    nats: Connection
    topology: Topology = TOPOLOGY

    @property
    def publisher(self) -> Publisher:
        return Publisher(self.nats)

    @property
    def records(self) -> Bucket:
        return Bucket(self.nats, self.publisher, self.topology.state)

    async def accept(self, invocation_id: str) -> Known:
        """The record of an invocation that a worker runs."""
        record = InvocationRecord(
            request_hash="hash",
            serverless_request_id="thumbs",
            enqueued_at=NOW,
            deadline=NOW + timedelta(minutes=1),
            updated_at=NOW,
        )
        revision = await self.records.create(invocation_id, encode(record))
        assert revision is not None
        return Known(record, revision)

    async def record(self, invocation_id: str) -> InvocationRecord | None:
        entry = await self.records.get(invocation_id)
        return decode(entry.value, InvocationRecord) if entry else None

    async def send(self, results: Iterable[Result], known: Known | None = None) -> None:
        subject = self.topology.subjects.result("thumbs")
        headers = headers_of(known) if known else {}
        outcomes = await self.publisher.publish_many(Outgoing(subject, encode(each), "", headers) for each in results)
        assert all(isinstance(each, Stored) for each in outcomes)

    async def waiting(self) -> int:
        """How many results are not acknowledged yet."""
        info = await call(self.nats, f"STREAM.INFO.{self.topology.storing.stream}")
        count: int = info["state"]["messages"]
        return count

    async def until_empty(self, within: float = 60) -> None:
        async def is_empty() -> bool:
            return await self.waiting() == 0

        await until(is_empty, "every result is acknowledged", within)

    async def find(self, invocation_id: str) -> Result | None:
        found = await self._ask(RESULT, FindResult(invocation_id=invocation_id), FoundResult)
        assert not found.problem
        return found.result

    async def listed(self, **asked: Any) -> ListedResults:
        return await self._ask(RESULTS, ListResults(serverless_request_id="thumbs", **asked), ListedResults)

    async def every(self) -> list[Result]:
        """Page by page."""
        page = await self.listed(limit=500)
        found = list(page.results)
        while page.after:
            page = await self.listed(limit=500, after=page.after)
            found += page.results
        return found

    async def _ask(self, what: str, question: Message, model: type[M]) -> M:
        answer = await ask(self.nats, self.topology.subjects.query(what), encode(question), within=60)
        return decode(answer, model)


@pytest.fixture
async def plane(nats_account: Account) -> AsyncIterator[Plane]:
    async with connection(Options((nats_account.url,), request_timeout=30)) as nats:
        await nats.wait(60)
        plane = Plane(nats)
        topology = plane.topology
        await ensure_until_done(nats, topology.streams, [topology.state], tuple(topology.consumers()))
        yield plane


def result(invocation_id: str, state: ResultState = ResultState.SUCCEEDED, body: bytes = b"answer") -> Result:
    ended = Result(
        invocation_id=invocation_id,
        serverless_request_id="thumbs",
        state=state,
        timings=Timings(enqueued_at=NOW, finished_at=NOW),
        worker="thumbs-1",
        attempts=1,
    )
    return with_body(ended, "text/plain", body)
