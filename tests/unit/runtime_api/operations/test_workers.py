"""Work that goes on after the answer."""

import asyncio
from collections.abc import Callable

import pytest

from gpu_runtime.contract.crd.operation import Operation, OperationType
from gpu_runtime.contract.errors import Unavailable
from gpu_runtime.kube.errors import Unreachable
from gpu_runtime.runtime_api.operations.background_queue import Workers
from tests.unit.kube.fake_time import now, on_fake_time
from tests.unit.runtime_api.objects import operation


class Driving:
    """Remembers what it was given, and takes its time."""

    def __init__(self, meanwhile: Callable[[Operation], None] | None = None, seconds: float = 0) -> None:
        self.begun: list[Operation] = []
        self.ended: list[Operation] = []
        self._meanwhile = meanwhile
        self._seconds = seconds

    async def carry(self, given: Operation) -> Operation:
        self.begun.append(given)
        if self._meanwhile:
            self._meanwhile(given)
        await asyncio.sleep(self._seconds)
        self.ended.append(given)
        return given


def workers(driving: Driving, **limits: int) -> Workers:
    return Workers({OperationType.SEED_STOCK: driving}, **limits)


@on_fake_time
async def test_what_is_in_progress_at_the_end_comes_to_its_own_end_within_the_grace() -> None:
    driving, stopping = Driving(lambda _: stopping.set(), seconds=5), asyncio.Event()
    crew = workers(driving)
    crew.begin(operation())
    await crew.run(stopping, grace=10)
    assert driving.ended == [operation()]
    assert now() == 1005


@on_fake_time
async def test_what_takes_longer_is_left_to_others() -> None:
    driving, stopping = Driving(lambda _: stopping.set(), seconds=3600), asyncio.Event()
    crew = workers(driving)
    crew.begin(operation())
    await crew.run(stopping, grace=10)
    assert (len(driving.begun), len(driving.ended)) == (1, 0)
    assert now() == 1010


@on_fake_time
async def test_a_caller_who_repeats_itself_starts_nothing_twice() -> None:
    driving, stopping = Driving(lambda _: stopping.set(), seconds=1), asyncio.Event()
    crew = workers(driving)
    crew.begin(operation())
    crew.begin(operation())
    await crew.run(stopping, grace=10)
    assert len(driving.begun) == 1


@on_fake_time
async def test_beyond_the_limit_nothing_is_taken_on() -> None:
    driving = Driving()
    crew = workers(driving, waiting=0)
    crew.begin(operation())
    stopping = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(crew.run(stopping, grace=1))
        await asyncio.sleep(5)
        stopping.set()
    assert driving.begun == []


@pytest.mark.parametrize(
    "failure", [Unreachable("no answer", sent=True), Unavailable("not now"), RuntimeError("a bug")], ids=repr
)
def test_one_failure_stops_nobody_else(failure: Exception) -> None:
    stopping = asyncio.Event()
    first, second = operation(), operation(OperationType.CREATE_STOCK_POOL, uid="another")

    def fail(_: Operation) -> None:
        raise failure

    last = Driving(lambda _: stopping.set())

    @on_fake_time
    async def body() -> None:
        crew = Workers({OperationType.SEED_STOCK: Driving(fail), OperationType.CREATE_STOCK_POOL: last}, at_once=1)
        crew.begin(first)
        crew.begin(second)
        await crew.run(stopping, grace=1)

    body()
    assert last.ended == [second]
