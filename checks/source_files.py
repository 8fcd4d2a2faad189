"""The files of the repository, as git knows them."""

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@cache
def tracked_files() -> tuple[str, ...]:
    """Every file that git tracks or would add, relative to the root."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return tuple(sorted(name for name in listed.splitlines() if (ROOT / name).is_file()))


@cache
def parsed(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text(), filename=path)


def python_files(*folders: str) -> Iterator[str]:
    for name in tracked_files():
        if name.endswith(".py") and name.startswith(tuple(f"{folder}/" for folder in folders)):
            yield name
