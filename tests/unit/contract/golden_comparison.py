"""Compares durable formats with the golden files of this folder. docs/compatibility.md lists these formats.

A golden file changes only if a durable format changes. Then write the new files with `WRITE_GOLDEN=1 make test-unit
ARGS=tests/unit/contract`, read the difference, and say in the commit why the format changes.
"""

import os
from pathlib import Path
from typing import Any

import msgspec

GOLDEN = Path(__file__).parent / "golden"


def golden_bytes(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


def assert_golden(name: str, data: bytes) -> None:
    """Assert that a format has not changed. `data` does not contain the newline at the end of the file."""
    if os.environ.get("WRITE_GOLDEN"):
        (GOLDEN / name).write_bytes(data + b"\n")
    assert data + b"\n" == golden_bytes(name), f"the durable format {name} has changed: see {__name__}"


def readable_json(document: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(document), indent=2)
