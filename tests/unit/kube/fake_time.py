"""An event loop whose clock jumps to the next timer instead of waiting for it."""

import asyncio
import functools
import selectors
from collections.abc import Awaitable, Callable
from typing import Any


class JumpingSelector(selectors.DefaultSelector):
    """Selects without waiting: the clock jumps ahead by the time that it should have waited."""

    now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("deadlock: every task waits, and no timer is set")
            self.now += max(0.0, timeout)
        return ready


class FakeTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def on_fake_time(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test on an event loop with fake time. Hours pass in milliseconds, and the order of events is fixed."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def body() -> None:
            await test(*args, **kwargs)

        with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
            runner.run(body())

    return run


def now() -> float:
    return asyncio.get_running_loop().time()
