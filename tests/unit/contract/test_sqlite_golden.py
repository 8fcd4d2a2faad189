"""The result database has the golden schema, and the result store reads a database with this schema."""

import sqlite3
from datetime import UTC, datetime
from pathlib import Path

from gpu_runtime.result_repository.sqlite_repository import open_repository
from gpu_runtime.result_repository.sqlite_schema import APPLICATION_ID, SCHEMA_VERSION, open_database
from gpu_runtime.result_store.query_handler import result_from_row
from gpu_runtime.result_store.result_consumer import row_from_result
from tests.unit.contract.golden_comparison import assert_golden, golden_bytes
from tests.unit.contract.test_message_golden import RESULT

ACCEPTED_AT = datetime(2026, 11, 16, 11, 59, 59, tzinfo=UTC)


def schema_of(database: sqlite3.Connection) -> bytes:
    """Return the statements that create the tables of a database. Whitespace is normalized."""
    statements = database.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid")
    pragmas = [f"PRAGMA application_id = {APPLICATION_ID};", f"PRAGMA user_version = {SCHEMA_VERSION};"]
    lines = [*(" ".join(sql.split()) + ";" for (sql,) in statements), *pragmas]
    return "\n".join(lines).encode()


def test_schema_has_not_changed(tmp_path: Path) -> None:
    database = open_database(tmp_path / "results.db")
    try:
        assert_golden("sqlite_schema.sql", schema_of(database))
        assert database.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert database.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    finally:
        database.close()


def test_stored_result_has_the_golden_bytes() -> None:
    row = row_from_result(RESULT, ACCEPTED_AT)
    assert (row.invocation_id, row.request_id, row.state) == ("01HZX-inv_1", "thumbs", "failed")
    assert row.body == RESULT.body
    assert_golden("sqlite_result_head.json", row.head)


async def test_result_in_a_database_with_the_golden_schema_is_read(tmp_path: Path) -> None:
    path, head = tmp_path / "results.db", golden_bytes("sqlite_result_head.json").rstrip(b"\n")
    database = sqlite3.connect(path)
    database.executescript(golden_bytes("sqlite_schema.sql").decode())
    columns = [name for _, name, *_ in database.execute("PRAGMA table_info(results)")]
    stored = dict(
        zip(
            columns,
            (1, "01HZX-inv_1", "thumbs", "failed", 1_794_830_400_123, 1_794_830_399_000, head, RESULT.body),
            strict=True,
        )
    )
    names, parameters = ", ".join(stored), ", ".join(f":{name}" for name in stored)
    database.execute(f"INSERT INTO results ({names}) VALUES ({parameters})", stored)  # noqa: S608 - names of the schema
    database.commit()
    database.close()
    async with open_repository(path) as repository:
        row = await repository.get("01HZX-inv_1")
        page = await repository.page("thumbs", "failed", None, 10)
    assert row
    assert result_from_row(row) == RESULT
    assert row.accepted_at == datetime.fromtimestamp(1_794_830_399, UTC)
    assert page.heads == ((1, head),)
