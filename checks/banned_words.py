"""Words of `banned_words.yaml` do not appear in names, file names, settings keys, metric names or log messages.

A word matches whole parts of a snake-case or camel-case name: `room` matches `room`, `get_room` and `RoomService`, not
`mushroom`. Only definitions are checked, so a name of the standard library or of a dependency is not reported.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import PurePath
from typing import Any

import yaml

from checks.finding import Finding
from checks.log_calls import log_messages
from checks.source_files import ROOT, parsed, python_files, tracked_files

LIST = "checks/banned_words.yaml"
CODE = ("src", "tests", "bench", "localcluster", "checks", "docgen", "examples")
NAMED_FOLDERS = (*(f"{folder}/" for folder in CODE), "config/", "docs/")
METRIC_TYPES = frozenset({"Counter", "Gauge", "Histogram", "Summary", "Info", "Enum"})


@cache
def _banned() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / LIST).read_text()))


def check_banned_words() -> Iterator[Finding]:
    yield from _file_names()
    yield from _yaml_keys()
    for path in python_files(*CODE):
        for line, name in defined_names(parsed(path)):
            yield from _findings(path, line, name)
        for line, metric in _metric_names(parsed(path)):
            yield from _findings(path, line, metric)
        for line, message in log_messages(parsed(path)):
            yield from _findings(path, line, message, what="log message")


def name_parts(name: str) -> tuple[str, ...]:
    """The lower-case parts of a name: `HTTPServer2_room` has http, server2 and room."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return tuple(part.lower() for part in re.split(r"[^A-Za-z0-9]+", spaced) if part)


def banned_in(name: str) -> Iterator[str]:
    """The banned words, or sequences of words, that a name has and that no exception covers."""
    parts = name_parts(name)
    allowed = {name_parts(each) for each in _banned()["exceptions"]}
    for word in _banned()["words"]:
        sequence = name_parts(word)
        for start in range(len(parts) - len(sequence) + 1):
            if parts[start : start + len(sequence)] == sequence and not _covered(parts, start, sequence, allowed):
                yield word
                break


def _covered(parts: tuple[str, ...], start: int, word: tuple[str, ...], allowed: set[tuple[str, ...]]) -> bool:
    """Whether the word is part of a longer sequence that is allowed, such as `tell` in `file_tell`."""
    for each in allowed:
        for offset in range(len(parts) - len(each) + 1):
            inside = offset <= start and start + len(word) <= offset + len(each)
            if inside and parts[offset : offset + len(each)] == each:
                return True
    return False


def _findings(path: str, line: int, name: str, what: str = "name") -> Iterator[Finding]:
    for word in banned_in(name):
        remedy = _banned()["words"][word]
        yield Finding(path, line, f"{what} {name!r} has the banned word {word!r}; use {remedy}")


def _file_names() -> Iterator[Finding]:
    for path in tracked_files():
        if path.startswith(NAMED_FOLDERS):
            for part in PurePath(path).parts:
                yield from _findings(path, 1, part.removesuffix(".py"), what="file name")


def _yaml_keys() -> Iterator[Finding]:
    for path in tracked_files():
        if path.startswith("config/local/") and path.endswith(".yaml"):
            for number, line in enumerate((ROOT / path).read_text().splitlines(), 1):
                if key := re.match(r"\s*#?\s*([A-Za-z]+):", line):
                    yield from _findings(path, number, key[1], what="settings key")


def defined_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every name that the module defines: functions, classes, parameters, variables, attributes, import aliases."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.Attribute(attr=name, ctx=ast.Store(), value=ast.Name(id="self")):
                yield node.lineno, name
            case ast.alias(asname=str(name)):
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield node.lineno, name


def _metric_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=kind), args=[ast.Constant(value=str(name)), *_]) if kind in METRIC_TYPES:
                yield node.lineno, name
