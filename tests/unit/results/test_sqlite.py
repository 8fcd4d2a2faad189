"""Results on a real file: stored once, found again, paged, forgotten, and there after whatever happens to a process."""

import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpu_runtime.result_repository.errors import Unfit, Unusable
from gpu_runtime.result_repository.eviction import AT_ONCE
from gpu_runtime.result_repository.repository import Forgotten, Keeping, Row, Standing
from gpu_runtime.result_repository.sqlite_repository import SQLiteResults, opened
from gpu_runtime.result_repository.sqlite_schema import VERSION, prepared
from gpu_runtime.result_repository.sqlite_thread import Desk

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
WEEK = Keeping(timedelta(days=7), bytes=1024**3)


def row(name: str, state: str = "succeeded", request_id: str = "thumbs", body: bytes = b"body") -> Row:
    return Row(name, request_id, state, head=f"head of {name}".encode(), body=body)


def rows(count: int, **more: str) -> list[Row]:
    return [row(f"inv-{number}", **more) for number in range(count)]  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.db"


@pytest.fixture
async def results(path: Path) -> AsyncIterator[SQLiteResults]:
    async with opened(path) as made:
        yield made


async def test_a_result_is_found_as_it_was_stored(results: SQLiteResults) -> None:
    stored = row("one", body=bytes(range(256)) * 2048)
    assert await results.insert([stored], NOW) == [Standing("succeeded", new=True)]
    assert await results.get("one") == stored
    assert await results.get("another") is None


async def test_the_first_result_of_an_invocation_stands(results: SQLiteResults) -> None:
    await results.insert([row("one", "cancelled")], NOW)
    standing = await results.insert([row("one"), row("two", "failed"), row("two"), row("one", "failed")], NOW)
    assert standing == [
        Standing("cancelled", new=False),
        Standing("failed", new=True),
        Standing("failed", new=False),
        Standing("cancelled", new=False),
    ]
    assert await results.get("one") == row("one", "cancelled")
    assert (await results.size()).results == 2


async def test_what_is_stored_is_there_after_a_restart_and_nobody_elses(path: Path) -> None:
    async with opened(path) as first:
        await first.insert(rows(3), NOW)
    async with opened(path) as second:
        assert (await second.size()).results == 3
        assert [each.stat().st_mode & 0o777 for each in path.parent.iterdir()] == [0o600] * 3


async def test_pages_go_from_the_newest_to_the_oldest_without_gaps(results: SQLiteResults) -> None:
    await results.insert([*rows(25), *(row(f"other-{n}", request_id="other") for n in range(5))], NOW)
    seen: list[bytes] = []
    before, more = None, True
    while more:
        page = await results.page("thumbs", None, before, 10)
        seen += [head for _, head in page.heads]
        before, more = page.heads[-1][0], page.more
        await results.insert([row(f"newer-{len(seen)}")], NOW)  # what comes meanwhile does not move what is older
    assert seen == [f"head of inv-{number}".encode() for number in reversed(range(25))]


async def test_a_page_of_one_state_has_only_those(results: SQLiteResults) -> None:
    await results.insert([row(f"inv-{n}", "failed" if n % 10 == 0 else "succeeded") for n in range(40)], NOW)
    page = await results.page("thumbs", "failed", None, 3)
    assert [head for _, head in page.heads] == [b"head of inv-30", b"head of inv-20", b"head of inv-10"]
    assert page.more
    last = await results.page("thumbs", "failed", page.heads[-1][0], 3)
    assert [head for _, head in last.heads] == [b"head of inv-0"]
    assert not last.more
    assert (await results.page("thumbs", "expired", None, 3)).heads == ()


async def test_old_results_are_forgotten_a_few_at_a_time(results: SQLiteResults) -> None:
    await results.insert(rows(AT_ONCE + 50), NOW - timedelta(days=8))
    await results.insert([row("young")], NOW)
    assert await results.forget(WEEK, NOW) == Forgotten(expired=AT_ONCE)
    assert await results.forget(WEEK, NOW) == Forgotten(expired=50)
    assert not (await results.forget(WEEK, NOW)).any
    assert (await results.size()).results == 1
    assert await results.get("young") == row("young")


async def test_results_that_need_too_much_room_go_before_their_time_the_oldest_first(results: SQLiteResults) -> None:
    await results.insert([row(f"inv-{n}", body=b"x" * 100_000) for n in range(40)], NOW)
    most = Keeping(timedelta(days=7), bytes=2_000_000)
    crowded_out = 0
    while (forgotten := await results.forget(most, NOW)).any:
        crowded_out += forgotten.crowded_out
    size = await results.size()
    assert size.bytes <= most.bytes
    assert crowded_out + size.results == 40
    assert size.results >= 17
    assert await results.get("inv-39") is not None
    assert await results.get("inv-0") is None


async def test_room_that_was_freed_is_used_again(results: SQLiteResults, path: Path) -> None:
    async def fill_and_empty(generation: int) -> int:
        await results.insert([row(f"{generation}-{n}", body=b"x" * 50_000) for n in range(20)], NOW)
        while (await results.forget(Keeping(timedelta(0), 1024**3), NOW + timedelta(seconds=1))).any:
            pass
        return path.stat().st_size  # noqa: ASYNC240

    sizes = [await fill_and_empty(generation) for generation in range(12)]
    assert sizes[-1] <= 3 * 20 * 50_000


async def test_a_full_disk_changes_nothing_and_is_survived(path: Path) -> None:
    def small() -> sqlite3.Connection:
        database = prepared(path)
        database.execute("PRAGMA max_page_count = 60")
        return database

    async with Desk.opened("writer", small) as writing, Desk.opened("reader", lambda: prepared(path)) as reading:
        results = SQLiteResults(writing, reading)
        await results.insert(rows(10), NOW)
        with pytest.raises(Unusable, match=r"full \(SQLITE_FULL\)"):
            await results.insert([row("small"), row("large", body=b"x" * 300_000)], NOW)
        assert await results.get("small") is None, "a transaction is stored whole or not at all"
        assert (await results.size()).results == 10
        await writing.do(lambda database: database.execute("PRAGMA max_page_count = 6000").fetchone())
        stood = await results.insert([row("small"), row("large", body=b"x" * 300_000)], NOW)
        assert [each.new for each in stood] == [True, True]


def test_a_newer_file_is_refused_and_left_alone(path: Path) -> None:
    prepared(path).close()
    with sqlite3.connect(path) as newer:
        newer.execute(f"PRAGMA user_version = {VERSION + 1}")
    newer.close()
    with pytest.raises(Unfit, match=rf"has version {VERSION + 1}; .* up to version {VERSION}: upgrade it"):
        prepared(path)


def test_somebody_elses_database_is_refused_and_left_alone(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE results (id)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(Unfit, match="not one of results"):
        prepared(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(("text", "problem"), [(b"no database" * 100, "SQLITE_NOTADB"), (None, "No such file")])
def test_what_can_never_be_opened_says_so(path: Path, text: bytes | None, problem: str) -> None:
    if text is None:
        path = path.parent / "missing" / "results.db"
    else:
        path.write_bytes(text)
    with pytest.raises(Unfit, match=problem):
        prepared(path)


def test_a_file_that_another_process_holds_may_be_had_later(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_runtime.result_repository.sqlite_schema.LOCK_SECONDS", 0.05)
    prepared(path).close()
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unusable, match="SQLITE_BUSY"):
        prepared(path)
    holder.close()
    prepared(path).close()


WRITER = """
import asyncio, sys
from datetime import UTC, datetime
from pathlib import Path
from gpu_runtime.result_repository.repository import Row
from gpu_runtime.result_repository.sqlite_repository import opened

async def write():
    async with opened(Path(sys.argv[1])) as results:
        for batch in range(100_000):
            rows = [Row(f"{batch}-{n}", "f", "succeeded", b"head", b"x" * 5000) for n in range(20)]
            await results.insert(rows, datetime.now(UTC))
            print(batch, flush=True)

asyncio.run(write())
"""


def killed_writer(path: Path) -> int:
    """The last batch that a writer reported before it was killed."""
    with subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        first = next(line for line in writer.stdout if int(line) >= 20)
        writer.send_signal(signal.SIGKILL)
        return [int(first), *map(int, writer.stdout.read().split())][-1]


@pytest.mark.parametrize("attempt", range(3))
async def test_a_writer_killed_in_the_middle_leaves_whole_batches_and_all_it_said(path: Path, attempt: int) -> None:
    said = killed_writer(path)
    async with opened(path) as results:
        stored = (await results.size()).results
        assert stored % 20 == 0
        assert stored >= 20 * (said + 1)
        assert (await results.insert([Row(f"{said}-19", "f", "failed", b"", b"")], NOW))[0].new is False
