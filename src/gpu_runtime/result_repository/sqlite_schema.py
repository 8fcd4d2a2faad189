"""The tables of the results, their version, and a connection that has them."""

import sqlite3
from errno import EDQUOT, EIO, ENOSPC
from pathlib import Path

from gpu_runtime.result_repository.errors import RepositoryIncompatible, RepositoryUnavailable

SCHEMA_VERSION = 1
APPLICATION_ID = 0x47525253
"""Marks the file as one of results."""

LOCK_TIMEOUT_SECONDS = 5.0
MAX_WAL_BYTES = 64 * 1024 * 1024
"""What the write-ahead log is cut to after it grew larger."""

# The body comes last: whoever reads what stands before it does not read through it. The index has the state, so that a
# page of the failed ones of a function with many results reads the index alone until it meets them.
SCHEMA_STATEMENTS = (
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

_TRANSIENT_ERROR_CODES = frozenset(
    {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
)


def open_database(path: Path) -> sqlite3.Connection:
    """A connection to a file that has the tables. Unfit where it never will, Unusable where it may later."""
    _touch(path)
    database = sqlite3.connect(path, timeout=LOCK_TIMEOUT_SECONDS, isolation_level=None)
    try:
        _checked_version(database, path)  # before anything is changed in a file that may be somebody else's
        _configure(database, path)
        _create_tables(database, path)
    except sqlite3.Error as error:
        database.close()
        kind = (
            RepositoryUnavailable if error.sqlite_errorcode & 0xFF in _TRANSIENT_ERROR_CODES else RepositoryIncompatible
        )
        raise kind(f"{path}: {error} ({error.sqlite_errorname})") from error
    except BaseException:
        database.close()
        raise
    return database


def _touch(path: Path) -> None:
    try:
        path.touch(mode=0o600)  # what functions answered is nobody else's; the log gets the same mode
    except OSError as error:
        kind = RepositoryUnavailable if error.errno in (ENOSPC, EDQUOT, EIO) else RepositoryIncompatible
        raise kind(f"cannot open {path}: {error.strerror}") from error


def _configure(database: sqlite3.Connection, path: Path) -> None:
    (mode,) = database.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise RepositoryIncompatible(f"{path}: its file system allows no write-ahead log; use a volume of one machine")
    database.execute("PRAGMA synchronous = FULL")
    database.execute(f"PRAGMA journal_size_limit = {MAX_WAL_BYTES}")


def _create_tables(database: sqlite3.Connection, path: Path) -> None:
    database.execute("BEGIN IMMEDIATE")
    try:
        found = _checked_version(database, path)
        if found == 0:
            for statement in SCHEMA_STATEMENTS:
                database.execute(statement)
            database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def _checked_version(database: sqlite3.Connection, path: Path) -> int:
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (tables,) = database.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if tables and application != APPLICATION_ID:
        raise RepositoryIncompatible(f"{path} is a database, but not one of results")
    version: int = database.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise RepositoryIncompatible(
            f"{path} has version {version}; this process knows up to version {SCHEMA_VERSION}: upgrade it"
        )
    return version
