"""The SQLite repository with a real file: insert once, read, list, evict, and survive a killed process."""

import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpu_runtime.result_repository.errors import RepositoryIncompatible, RepositoryUnavailable
from gpu_runtime.result_repository.eviction import EVICTION_BATCH_SIZE
from gpu_runtime.result_repository.repository import EvictedCounts, InsertOutcome, ResultRow, RetentionLimits
from gpu_runtime.result_repository.sqlite_repository import SQLiteResultRepository, SQLiteThread, open_repository
from gpu_runtime.result_repository.sqlite_schema import SCHEMA_VERSION, open_database

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
WEEK = RetentionLimits(timedelta(days=7), max_bytes=1024**3)


def row(name: str, state: str = "succeeded", request_id: str = "thumbs", body: bytes = b"body") -> ResultRow:
    return ResultRow(name, request_id, state, head=f"head of {name}".encode(), body=body, accepted_at=NOW)


def rows(count: int, **more: str) -> list[ResultRow]:
    return [row(f"inv-{number}", **more) for number in range(count)]  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.db"


@pytest.fixture
async def results(path: Path) -> AsyncIterator[SQLiteResultRepository]:
    async with open_repository(path) as repository:
        yield repository


async def test_stored_result_is_read_back_unchanged(results: SQLiteResultRepository) -> None:
    stored = row("one", body=bytes(range(256)) * 2048)
    assert await results.insert([stored], NOW) == [InsertOutcome("succeeded", inserted=True)]
    assert await results.get("one") == stored
    assert await results.get("another") is None


async def test_first_result_of_an_invocation_wins(results: SQLiteResultRepository) -> None:
    await results.insert([row("one", "cancelled")], NOW)
    outcomes = await results.insert([row("one"), row("two", "failed"), row("two"), row("one", "failed")], NOW)
    assert outcomes == [
        InsertOutcome("cancelled", inserted=False),
        InsertOutcome("failed", inserted=True),
        InsertOutcome("failed", inserted=False),
        InsertOutcome("cancelled", inserted=False),
    ]
    assert await results.get("one") == row("one", "cancelled")
    assert (await results.size()).result_count == 2


async def test_result_of_the_invocation_that_was_accepted_last_is_kept(results: SQLiteResultRepository) -> None:
    """An invocationID can be used again when its record has expired, while its result is still stored."""
    first, second = row("one", "failed"), replace(row("one", body=b"new"), accepted_at=NOW + timedelta(days=1))
    await results.insert([first, row("other")], NOW)
    assert await results.insert([second, first], NOW) == [
        InsertOutcome("succeeded", inserted=True),
        InsertOutcome("succeeded", inserted=False),
    ]
    assert await results.get("one") == second
    assert [head for _, head in (await results.page("thumbs", None, None, 10)).heads] == [second.head, b"head of other"]
    assert (await results.size()).result_count == 2


async def test_results_survive_a_restart_and_files_are_private(path: Path) -> None:
    async with open_repository(path) as first:
        await first.insert(rows(3), NOW)
    async with open_repository(path) as second:
        assert (await second.size()).result_count == 3
        assert [each.stat().st_mode & 0o777 for each in path.parent.iterdir()] == [0o600] * 3


async def test_pages_go_from_the_newest_to_the_oldest_without_gaps(results: SQLiteResultRepository) -> None:
    await results.insert([*rows(25), *(row(f"other-{n}", request_id="other") for n in range(5))], NOW)
    seen: list[bytes] = []
    before, more = None, True
    while more:
        page = await results.page("thumbs", None, before, 10)
        seen += [head for _, head in page.heads]
        before, more = page.heads[-1][0], page.has_more
        await results.insert([row(f"newer-{len(seen)}")], NOW)  # a newer result does not shift the older ones
    assert seen == [f"head of inv-{number}".encode() for number in reversed(range(25))]


async def test_page_filters_by_state(results: SQLiteResultRepository) -> None:
    await results.insert([row(f"inv-{n}", "failed" if n % 10 == 0 else "succeeded") for n in range(40)], NOW)
    page = await results.page("thumbs", "failed", None, 3)
    assert [head for _, head in page.heads] == [b"head of inv-30", b"head of inv-20", b"head of inv-10"]
    assert page.has_more
    last = await results.page("thumbs", "failed", page.heads[-1][0], 3)
    assert [head for _, head in last.heads] == [b"head of inv-0"]
    assert not last.has_more
    assert (await results.page("thumbs", "expired", None, 3)).heads == ()


async def test_expired_results_are_evicted_in_batches(results: SQLiteResultRepository) -> None:
    await results.insert(rows(EVICTION_BATCH_SIZE + 50), NOW - timedelta(days=8))
    await results.insert([row("recent")], NOW)
    assert await results.evict(WEEK, NOW) == EvictedCounts(by_ttl=EVICTION_BATCH_SIZE)
    assert await results.evict(WEEK, NOW) == EvictedCounts(by_ttl=50)
    assert not (await results.evict(WEEK, NOW)).nonzero
    assert (await results.size()).result_count == 1
    assert await results.get("recent") == row("recent")


async def test_results_above_the_size_limit_are_evicted_oldest_first(
    results: SQLiteResultRepository,
) -> None:
    await results.insert([row(f"inv-{n}", body=b"x" * 100_000) for n in range(40)], NOW)
    limits = RetentionLimits(timedelta(days=7), max_bytes=2_000_000)
    evicted_by_size = 0
    while (evicted := await results.evict(limits, NOW)).nonzero:
        evicted_by_size += evicted.by_size
    size = await results.size()
    assert size.used_bytes <= limits.max_bytes
    assert evicted_by_size + size.result_count == 40
    assert size.result_count >= 17
    assert await results.get("inv-39") is not None
    assert await results.get("inv-0") is None


async def test_functions_of_equal_size_lose_the_same_number_of_results(results: SQLiteResultRepository) -> None:
    functions = ("one", "two", "three")
    for name in functions:
        await results.insert([row(f"{name}-{n}", request_id=name, body=b"x" * 100_000) for n in range(20)], NOW)
    while (await results.evict(RetentionLimits(timedelta(days=7), max_bytes=3_300_000), NOW)).nonzero:
        pass
    remaining = [len((await results.page(name, None, None, 100)).heads) for name in functions]
    assert max(remaining) - min(remaining) <= 1
    assert sum(remaining) == (await results.size()).result_count


async def test_results_count_after_their_eviction_until_the_maximum_age(results: SQLiteResultRepository) -> None:
    hour = timedelta(hours=1)
    await results.insert(rows(3), NOW - 25 * hour)
    await results.insert([row(f"large-{n}", body=b"x" * 500_000) for n in range(10)], NOW - 2 * hour)
    await results.insert([row("other", request_id="other")], NOW)
    while (await results.evict(RetentionLimits(timedelta(days=2), max_bytes=1_000_000), NOW)).nonzero:
        pass
    assert (await results.size()).result_count < 5
    assert await results.count_since("thumbs", NOW - 24 * hour) == 10
    assert await results.count_since("thumbs", NOW - 30 * hour) == 13
    assert await results.count_since("thumbs", NOW - hour) == 0
    assert await results.count_since("missing", NOW - 24 * hour) == 0
    await results.evict(RetentionLimits(timedelta(days=1), 1024**3), NOW)
    assert await results.count_since("thumbs", NOW - 30 * hour) == 10


async def test_freed_pages_are_reused(results: SQLiteResultRepository, path: Path) -> None:
    async def fill_and_empty(generation: int) -> int:
        await results.insert([row(f"{generation}-{n}", body=b"x" * 50_000) for n in range(20)], NOW)
        while (await results.evict(RetentionLimits(timedelta(0), 1024**3), NOW + timedelta(seconds=1))).nonzero:
            pass
        return path.stat().st_size  # noqa: ASYNC240

    sizes = [await fill_and_empty(generation) for generation in range(12)]
    assert sizes[-1] <= 3 * 20 * 50_000


async def test_insert_with_a_full_disk_changes_nothing(path: Path) -> None:
    def open_small_database() -> sqlite3.Connection:
        database = open_database(path)
        database.execute("PRAGMA max_page_count = 60")
        return database

    async with (
        SQLiteThread.start("writer", open_small_database) as writer,
        SQLiteThread.start("reader", lambda: open_database(path)) as reader,
    ):
        results = SQLiteResultRepository(writer, reader)
        await results.insert(rows(10), NOW)
        with pytest.raises(RepositoryUnavailable, match=r"full \(SQLITE_FULL\)"):
            await results.insert([row("small"), row("large", body=b"x" * 300_000)], NOW)
        assert await results.get("small") is None, "a failed transaction must store nothing"
        assert (await results.size()).result_count == 10
        await writer.run(lambda database: database.execute("PRAGMA max_page_count = 6000").fetchone())
        outcomes = await results.insert([row("small"), row("large", body=b"x" * 300_000)], NOW)
        assert [each.inserted for each in outcomes] == [True, True]


@pytest.mark.parametrize("version", [SCHEMA_VERSION - 1, SCHEMA_VERSION + 1])
def test_other_schema_version_is_rejected_and_unchanged(path: Path, version: int) -> None:
    open_database(path).close()
    with sqlite3.connect(path) as other:
        other.execute(f"PRAGMA user_version = {version}")
    other.close()
    message = (
        rf"has schema version {version}; .* only version {SCHEMA_VERSION}: run the version .* or set database.path"
    )
    with pytest.raises(RepositoryIncompatible, match=message):
        open_database(path)


def test_foreign_database_is_rejected_and_unchanged(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE results (id)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(RepositoryIncompatible, match="not a result database"):
        open_database(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(("content", "message"), [(b"no database" * 100, "SQLITE_NOTADB"), (None, "No such file")])
def test_unusable_database_path_is_reported(path: Path, content: bytes | None, message: str) -> None:
    if content is None:
        path = path.parent / "missing" / "results.db"
    else:
        path.write_bytes(content)
    with pytest.raises(RepositoryIncompatible, match=message):
        open_database(path)


def test_locked_database_is_a_temporary_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_runtime.result_repository.sqlite_schema.LOCK_TIMEOUT_SECONDS", 0.05)
    open_database(path).close()
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(RepositoryUnavailable, match="SQLITE_BUSY"):
        open_database(path)
    holder.close()
    open_database(path).close()


WRITER = """
import asyncio, sys
from datetime import UTC, datetime
from pathlib import Path
from gpu_runtime.result_repository.repository import ResultRow
from gpu_runtime.result_repository.sqlite_repository import open_repository

async def write():
    async with open_repository(Path(sys.argv[1])) as results:
        for batch in range(100_000):
            now = datetime.now(UTC)
            rows = [ResultRow(f"{batch}-{n}", "f", "succeeded", b"head", b"x" * 5000, now) for n in range(20)]
            await results.insert(rows, now)
            print(batch, flush=True)

asyncio.run(write())
"""


def killed_writer(path: Path) -> int:
    """Return the last batch that a writer reported before it was killed."""
    with subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        first = next(line for line in writer.stdout if int(line) >= 20)
        writer.send_signal(signal.SIGKILL)
        return [int(first), *map(int, writer.stdout.read().split())][-1]


@pytest.mark.parametrize("attempt", range(3))
async def test_killed_writer_leaves_whole_batches_and_all_reported_ones(path: Path, attempt: int) -> None:
    reported = killed_writer(path)
    async with open_repository(path) as results:
        stored = (await results.size()).result_count
        assert stored % 20 == 0
        assert stored >= 20 * (reported + 1)
        last = await results.get(f"{reported}-19")
        assert last is not None
        assert (await results.insert([last], NOW))[0].inserted is False
