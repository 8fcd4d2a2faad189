"""The tables of the results, their version, and a connection that has them."""

import sqlite3
from errno import EDQUOT, EIO, ENOSPC
from pathlib import Path

from gpu_runtime.result_repository.errors import Unfit, Unusable

VERSION = 1
APPLICATION = 0x47525253
"""Marks the file as one of results."""

LOCK_SECONDS = 5.0
LOG_BYTES = 64 * 1024 * 1024
"""What the write-ahead log is cut to after it grew larger."""

# The body comes last: whoever reads what stands before it does not read through it. The index has the state, so that a
# page of the failed ones of a function with many results reads the index alone until it meets them.
TABLES = (
    """
    CREATE TABLE results (
        number INTEGER PRIMARY KEY,
        invocation_id TEXT NOT NULL UNIQUE,
        request_id TEXT NOT NULL,
        state TEXT NOT NULL,
        stored_at INTEGER NOT NULL,
        head BLOB NOT NULL,
        body BLOB NOT NULL
    )""",
    "CREATE INDEX results_of_a_function ON results (request_id, number, state)",
)

_PASSING = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


def prepared(path: Path) -> sqlite3.Connection:
    """A connection to a file that has the tables. Unfit where it never will, Unusable where it may later."""
    _touch(path)
    database = sqlite3.connect(path, timeout=LOCK_SECONDS, isolation_level=None)
    try:
        _version(database, path)  # before anything is changed in a file that may be somebody else's
        _configure(database, path)
        _make_tables(database, path)
    except sqlite3.Error as error:
        database.close()
        kind = Unusable if error.sqlite_errorcode & 0xFF in _PASSING else Unfit
        raise kind(f"{path}: {error} ({error.sqlite_errorname})") from error
    except BaseException:
        database.close()
        raise
    return database


def _touch(path: Path) -> None:
    try:
        path.touch(mode=0o600)  # what functions answered is nobody else's; the log gets the same mode
    except OSError as error:
        kind = Unusable if error.errno in (ENOSPC, EDQUOT, EIO) else Unfit
        raise kind(f"cannot open {path}: {error.strerror}") from error


def _configure(database: sqlite3.Connection, path: Path) -> None:
    (mode,) = database.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise Unfit(f"{path}: its file system allows no write-ahead log; use a volume of one machine")
    database.execute("PRAGMA synchronous = FULL")
    database.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")


def _make_tables(database: sqlite3.Connection, path: Path) -> None:
    database.execute("BEGIN IMMEDIATE")
    try:
        found = _version(database, path)
        if found == 0:
            for statement in TABLES:
                database.execute(statement)
            database.execute(f"PRAGMA application_id = {APPLICATION}")
            database.execute(f"PRAGMA user_version = {VERSION}")
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def _version(database: sqlite3.Connection, path: Path) -> int:
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (tables,) = database.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if tables and application != APPLICATION:
        raise Unfit(f"{path} is a database, but not one of results")
    version: int = database.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        raise Unfit(f"{path} has version {version}; this process knows up to version {VERSION}: upgrade it")
    return version
