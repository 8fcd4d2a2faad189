"""One function stores so many results that the database of results exceeds its maximum size."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpu_runtime.result_repository.repository import ResultRow, RetentionLimits
from gpu_runtime.result_repository.sqlite_repository import open_repository

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
LIMITS = RetentionLimits(timedelta(days=7), max_bytes=8_000_000)


def results_of(function: str, count: int, size: int) -> list[ResultRow]:
    return [ResultRow(f"{function}-{n}", function, "succeeded", b"head", b"x" * size, NOW) for n in range(count)]


@pytest.mark.parametrize(("count", "size"), [(30, 500_000), (40_000, 100)], ids=["large bodies", "many small results"])
async def test_results_of_one_function_do_not_evict_results_of_another(tmp_path: Path, count: int, size: int) -> None:
    async with open_repository(tmp_path / "results.db") as results:
        await results.insert(results_of("victim", 10, size=100_000), NOW)
        await results.insert(results_of("attacker", count, size), NOW + timedelta(seconds=1))
        evicted = 0
        while (batch := await results.evict(LIMITS, NOW + timedelta(seconds=2))).nonzero:
            evicted += batch.by_size
        assert evicted > 0
        assert len((await results.page("victim", None, None, 100)).heads) == 10
        assert (await results.size()).result_count == 10 + count - evicted
