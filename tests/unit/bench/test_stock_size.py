"""The benchmark of the stock size compares neighboring blocks, and fails only if a median misses its target."""

from typing import Any, cast

import pytest

from bench.handoff_runs import LoadMeasurement, LoadProfile, patch_stock_ready
from bench.kube_api import RawKubeClient
from bench.stock_size import BlockPair, rows


def block(latency: float, cpu: float) -> LoadMeasurement:
    return LoadMeasurement(
        profile=LoadProfile("stock", 1),
        latency_seconds=[latency],
        pod_latency_seconds=[],
        errors=[],
        creates_per_second=1,
        target_cpu_seconds=cpu,
        api_server_cpu_seconds=cpu,
        audited_requests={},
        metric_writes={},
        list_requests=0,
    )


def test_ratio_is_that_of_the_medians_and_its_range_that_of_neighboring_blocks() -> None:
    pairs = [BlockPair(block(0.010, 0.004), block(0.012, 0.004)), BlockPair(block(0.020, 0.004), block(0.018, 0.006))]
    p50, smallest, middle, largest = rows(pairs)[:4]
    assert [p50.value, p50.floor] == pytest.approx([15, 15])
    assert not p50.missed
    assert [each.value for each in (smallest, middle, largest)] == pytest.approx([0.9, 1.05, 1.2])


@pytest.mark.parametrize(("cpu", "missed"), [(0.0050, False), (0.0051, True)])
def test_create_that_costs_more_with_more_stock_misses_the_target(cpu: float, missed: bool) -> None:
    found = rows([BlockPair(block(0.010, 0.004), block(0.010, cpu))])
    assert [row.missed for row in found if "CPU per create" in row.label] == [missed, missed]
    assert not any(row.missed for row in found if "CPU" not in row.label)


class StubKube:
    """Each list request returns one more stock unit. The first one is Ready."""

    def __init__(self) -> None:
        self.lists = 0
        self.patched: list[str] = []

    async def get(self, _path: str) -> Any:
        self.lists += 1
        names = [f"stock-{number}" for number in range(self.lists)]
        ready = {"stock-0", *self.patched}
        return {
            "items": [
                {"metadata": {"name": each}, "status": {"phase": "Ready"} if each in ready else {}} for each in names
            ]
        }

    async def patch(self, path: str, _patch: Any) -> None:
        self.patched.append(path.split("/")[-2])


async def test_only_stock_that_is_not_ready_is_patched() -> None:
    kube = StubKube()
    await patch_stock_ready(cast(RawKubeClient, kube), 3)
    assert kube.patched == ["stock-1", "stock-2"]
