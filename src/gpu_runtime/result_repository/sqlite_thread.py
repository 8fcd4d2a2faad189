"""Runs the work of one SQLite connection in its own thread, one call at a time, without blocking the event loop."""

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
            connection = thread.submit(connect)
            try:
                database = await asyncio.wrap_future(connection)
            except BaseException:
                connection.add_done_callback(_close_unclaimed)
                raise
            try:
                yield cls(thread, database)
            finally:
                # If a write is still running, the close is queued after it, so the write completes.
                await asyncio.shield(loop.run_in_executor(thread, database.close))

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run the work in the thread. If the caller is cancelled, the work still completes."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, work)

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return work(self._database)
        except sqlite3.Error as error:
            raise RepositoryUnavailable(
                f"{error} ({getattr(error, 'sqlite_errorname', type(error).__name__)})"
            ) from error


def _close_unclaimed(connection: "Future[sqlite3.Connection]") -> None:
    """Close a connection that was opened after its caller was cancelled."""
    if not connection.cancelled() and connection.exception() is None:
        connection.result().close()
