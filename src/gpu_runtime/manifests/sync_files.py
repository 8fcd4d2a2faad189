"""Writes generated files, or reports which of them are stale."""

import sys
from collections.abc import Mapping
from pathlib import Path


def sync_files(expected: Mapping[Path, str | None], check: bool, command: str) -> int:
    """Make the files equal to the expected texts, or only report them. None: the file must not exist.

    Return the exit code. `command` is the command that the report names.
    """
    actual = {path: path.read_text(encoding="utf-8") if path.exists() else None for path in expected}
    stale = [path for path, text in expected.items() if text != actual[path]]
    for path in stale:
        if check:
            sys.stderr.write(f"{path} is stale: run `{command}` and commit the result\n")
        elif (text := expected[path]) is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return 1 if check and stale else 0
