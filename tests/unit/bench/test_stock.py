"""Rows and timeline of the stock benchmark, and the preparation of its functions."""

import asyncio
from typing import Any, cast

import pytest

from bench.function_runs import PAYLOAD, STOCK_UNITS_PATH, UNITS_PATH, BenchFunction
from bench.kube_api import RawKubeClient
from bench.stock import ANSWER, rows_of, timeline_of
from bench.stock_runs import Start, Timeline, Way
from gpu_runtime.contract.crd.well_known import Annotation


def starts_of(way: Way, *seconds: float) -> list[Start]:
    return [Start(way, {"unit created": each / 10, ANSWER: each, "stock pod ended": 2 * each}) for each in seconds]


@pytest.mark.parametrize(
    ("way", "base", "limit"),
    [
        (Way.FUNCTION_RESERVED, Way.FUNCTION_NO_STOCK, 1.15),
        (Way.FULL_FUNCTION_RESERVED, Way.FULL_FUNCTION_NO_STOCK, 1.6),
    ],
)
def test_median_of_a_function_from_stock_misses_its_target_above_the_limit(way: Way, base: Way, limit: float) -> None:
    for factor, missed in ((limit - 0.01, False), (limit + 0.01, True)):
        p50, p95, *_ = rows_of(way, starts_of(base, 1, 2, 3) + starts_of(way, factor, 2 * factor, 9 * factor))
        assert (p50.floor, p50.missed) == (2000, missed)
        assert p50.ratio == pytest.approx(factor)
        assert (p95.target, p95.missed) == ("", False)


def test_timeline_contains_only_steps_before_the_answer() -> None:
    timeline = timeline_of([Way.FUNCTION_NO_STOCK], starts_of(Way.FUNCTION_NO_STOCK, 1, 2, 3))
    assert timeline.steps == {Way.FUNCTION_NO_STOCK.value: {"unit created": 200, ANSWER: 2000}}


@pytest.mark.parametrize(
    ("way", "gpus", "spec_name", "is_function", "uses_reserved_stock"),
    [
        (Way.BARE_POD, 1, "one", False, False),
        (Way.FULL_RESERVED, 16, "all", False, True),
        (Way.PREPARED, 1, "prepared", False, False),
        (Way.FUNCTION_NO_STOCK, 1, "one", True, False),
        (Way.FUNCTION_RESERVED, 1, "one", True, True),
        (Way.FULL_FUNCTION_NO_STOCK, 16, "all", True, False),
        (Way.FULL_FUNCTION_RESERVED, 16, "all", True, True),
    ],
)
def test_way_has_flavor_and_kind(
    way: Way, gpus: int, spec_name: str, is_function: bool, uses_reserved_stock: bool
) -> None:
    assert (way.gpus, way.spec_name) == (gpus, spec_name)
    assert (way.is_function, way.uses_reserved_stock) == (is_function, uses_reserved_stock)


async def test_timeline_reports_whether_the_worker_is_from_stock() -> None:
    for annotations, is_from_stock in (({}, False), ({Annotation.SOURCE_STOCK_UID: "uid"}, True)):
        timeline = Timeline("function-one-w0", 0)
        timeline.see_unit({"metadata": {"name": "function-one", "annotations": {Annotation.SOURCE_STOCK_UID: "uid"}}})
        assert (timeline.is_from_stock, list(timeline.times)) == (False, [])
        timeline.see_unit({"metadata": {"name": "function-one-w0", "annotations": annotations}})
        assert (timeline.is_from_stock, list(timeline.times)) == (is_from_stock, ["unit created"])


class FakePlatform:
    """The API server and the runtime API. The worker disappears, and its stock unit becomes Ready some polls later."""

    def __init__(self, *, polls_until_deleted: int = 2, polls_until_ready: int = 2) -> None:
        self._polls_until_deleted, self._polls_until_ready = polls_until_deleted, polls_until_ready
        self.withdrawn: list[str] = []

    async def get(self, path: str) -> Any:
        assert path == UNITS_PATH
        self._polls_until_deleted -= 1
        functions = [{"spec": {"serverless": {"requestID": "function-one"}}}, {"spec": {}}]
        worker = {"spec": {"serverless": {"workerOf": "function-one"}}}
        return {"items": functions + [worker] * (self._polls_until_deleted >= 0)}

    async def request(self, method: str, path: str, body: Any) -> Any:
        if method == "POST":
            return {"data": {"state": "succeeded", "payload": body["payload"]}}
        if method == "DELETE":
            self.withdrawn.append(path.removeprefix(f"{STOCK_UNITS_PATH}/"))
            return None
        assert self._polls_until_deleted < 0, "the activator seeds the stock unit before it deletes the worker"
        self._polls_until_ready -= 1
        return {"data": [{"name": "stock-1"}] if self._polls_until_ready < 0 else []}

    def function(self) -> BenchFunction:
        return BenchFunction(cast("RawKubeClient", self), self.request, "one", 1)


@pytest.mark.parametrize(("from_stock", "withdrawn"), [(True, ["stock-1"]), (False, [])])
async def test_function_scaled_to_zero_leaves_no_stock(from_stock: bool, withdrawn: list[str]) -> None:
    platform = FakePlatform()
    async with asyncio.timeout(10):
        await platform.function().invoke()
        await platform.function().scale_to_zero(from_stock=from_stock)
    assert platform.withdrawn == withdrawn


async def test_failed_invocation_stops_the_benchmark() -> None:
    async def fail(_method: str, _path: str, _body: Any) -> Any:
        return {"data": {"state": "failed", "payload": PAYLOAD}}

    function = BenchFunction(cast("RawKubeClient", None), fail, "one", 1)
    with pytest.raises(RuntimeError, match="function-one has not succeeded"):
        await function.invoke()
