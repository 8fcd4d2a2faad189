"""The SQLite schema of the results and its version. Opens a connection and creates the tables if needed."""

import sqlite3
from errno import EDQUOT, EIO, ENOSPC
from pathlib import Path

from gpu_runtime.result_repository.errors import RepositoryIncompatible, RepositoryUnavailable

SCHEMA_VERSION = 3
APPLICATION_ID = 0x47525253
"""SQLite application_id that marks the file as a result database."""

LOCK_TIMEOUT_SECONDS = 5.0
"""How long a connection waits for a lock of another connection or process."""
COUNT_PERIOD_MILLISECONDS = 600_000
"""Length of a period of `result_counts`. The trigger has the same value."""
MAX_WAL_BYTES = 64 * 1024 * 1024
"""Size to which SQLite truncates the write-ahead log after it grew larger."""

# `body` is the last column, so a query for the other columns does not read the body. The index contains the state. So a
# query for the failed results of a function searches only the index, even if the function has many results.
#
# Triggers count the results and bytes of each function in the transaction of the insert or delete, so the counts are
# correct after a crash. 256 is an estimate of the size of a row and its index entries, without head and body.
#
# `result_counts` contains how many results of each function were stored in each period of ten minutes. The eviction of
# a result does not change it, because the record of the invocation may still exist.
SCHEMA_STATEMENTS = (
    """
    CREATE TABLE results (
        number INTEGER PRIMARY KEY,
        invocation_id TEXT NOT NULL UNIQUE,
        request_id TEXT NOT NULL,
        state TEXT NOT NULL,
        stored_at INTEGER NOT NULL,
        accepted_at INTEGER NOT NULL,
        head BLOB NOT NULL,
        body BLOB NOT NULL
    )""",
    "CREATE INDEX results_of_a_function ON results (request_id, number, state)",
    """
    CREATE TABLE function_usage (
        request_id TEXT PRIMARY KEY,
        result_count INTEGER NOT NULL,
        result_bytes INTEGER NOT NULL
    ) WITHOUT ROWID""",
    """
    CREATE TABLE result_counts (
        request_id TEXT NOT NULL,
        period INTEGER NOT NULL,
        result_count INTEGER NOT NULL,
        PRIMARY KEY (request_id, period)
    ) WITHOUT ROWID""",
    "CREATE INDEX result_counts_of_a_period ON result_counts (period)",
    """
    CREATE TRIGGER result_inserted AFTER INSERT ON results BEGIN
        INSERT INTO function_usage VALUES (new.request_id, 1, length(new.head) + length(new.body) + 256)
        ON CONFLICT (request_id) DO UPDATE SET
            result_count = result_count + 1, result_bytes = result_bytes + excluded.result_bytes;
        INSERT INTO result_counts VALUES (new.request_id, new.stored_at / 600000, 1)
        ON CONFLICT (request_id, period) DO UPDATE SET result_count = result_count + 1;
    END""",
    """
    CREATE TRIGGER result_deleted AFTER DELETE ON results BEGIN
        UPDATE function_usage
        SET result_count = result_count - 1, result_bytes = result_bytes - (length(old.head) + length(old.body) + 256)
        WHERE request_id = old.request_id;
        DELETE FROM function_usage WHERE request_id = old.request_id AND result_count = 0;
    END""",
)

_TRANSIENT_ERROR_CODES = frozenset(
    {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
)


def open_database(path: Path) -> sqlite3.Connection:
    """Open a connection to a database with the result tables.

    Raise RepositoryIncompatible if the file cannot be used, and RepositoryUnavailable if a retry may succeed.
    """
    _touch(path)
    database = sqlite3.connect(path, timeout=LOCK_TIMEOUT_SECONDS, isolation_level=None)
    try:
        _checked_version(database, path)  # first, so that a database of another program is not changed
        _configure(database, path)
        _create_tables(database, path)
    except sqlite3.Error as error:
        database.close()
        transient = error.sqlite_errorcode & 0xFF in _TRANSIENT_ERROR_CODES
        error_class = RepositoryUnavailable if transient else RepositoryIncompatible
        raise error_class(f"{path}: {error} ({error.sqlite_errorname})") from error
    except BaseException:
        database.close()
        raise
    return database


def _touch(path: Path) -> None:
    try:
        path.touch(mode=0o600)  # results are private; SQLite gives the log the same mode
    except OSError as error:
        transient = error.errno in (ENOSPC, EDQUOT, EIO)
        error_class = RepositoryUnavailable if transient else RepositoryIncompatible
        raise error_class(f"cannot open {path}: {error.strerror}") from error


def _configure(database: sqlite3.Connection, path: Path) -> None:
    (mode,) = database.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise RepositoryIncompatible(
            f"{path}: the file system does not support a write-ahead log; use a local file system"
        )
    database.execute("PRAGMA synchronous = FULL")
    database.execute(f"PRAGMA journal_size_limit = {MAX_WAL_BYTES}")


def _create_tables(database: sqlite3.Connection, path: Path) -> None:
    database.execute("BEGIN IMMEDIATE")
    try:
        if _checked_version(database, path) == 0:
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
        raise RepositoryIncompatible(
            f"{path} is a SQLite database, but not a result database; set database.path to another file"
        )
    version: int = database.execute("PRAGMA user_version").fetchone()[0]
    if version not in (0, SCHEMA_VERSION):
        raise RepositoryIncompatible(
            f"{path} has schema version {version}; this process supports only version {SCHEMA_VERSION}:"
            " run the version of the result store that created the file, or set database.path to another file"
        )
    return version
