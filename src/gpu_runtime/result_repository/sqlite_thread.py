"""One connection to SQLite in a thread of its own, which does one thing after another while the event loop goes on."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

from gpu_runtime.result_repository.errors import RepositoryUnavailable

T = TypeVar("T")


class SQLiteThread:
    def __init__(self, thread: ThreadPoolExecutor, database: sqlite3.Connection) -> None:
        self._thread, self._database = thread, database

    @classmethod
    @asynccontextmanager
    async def start(cls, name: str, connect: Callable[[], sqlite3.Connection]) -> AsyncIterator["SQLiteThread"]:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, thread_name_prefix=name) as thread:
            opening = thread.submit(connect)
            try:
                database = await asyncio.wrap_future(opening)
            except BaseException:
                opening.add_done_callback(_close_unclaimed)
                raise
            try:
                yield cls(thread, database)
            finally:
                # Queued behind whatever is being written, which is ended and not torn.
                await asyncio.shield(loop.run_in_executor(thread, database.close))

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Have it done. A caller that is cancelled no longer hears how it went; it is done all the same."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, work)

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return work(self._database)
        except sqlite3.Error as error:
            raise RepositoryUnavailable(
                f"{error} ({getattr(error, 'sqlite_errorname', type(error).__name__)})"
            ) from error


def _close_unclaimed(opening: "Future[sqlite3.Connection]") -> None:
    """Of a connection that came when nobody waited for it any more."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
