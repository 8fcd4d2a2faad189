"""Log messages are constant, and log fields have the same names in every process."""

import ast
from collections.abc import Iterator

import yaml

from checks.finding import Finding
from checks.source_files import ROOT, parsed, python_files

FIELDS = "checks/log_fields.yaml"
METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})


def check_log_calls() -> Iterator[Finding]:
    allowed = frozenset(yaml.safe_load((ROOT / FIELDS).read_text()))
    used: set[str] = set()
    for path in python_files("src"):
        yield from log_findings(path, parsed(path), allowed)
        used.update(_strings(parsed(path)))
    for field in sorted(allowed - used):
        yield Finding(FIELDS, 1, f"no log call has the field {field!r}; remove it from the list")


def _strings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def log_findings(path: str, tree: ast.Module, allowed: frozenset[str]) -> Iterator[Finding]:
    for call in _log_calls(tree):
        message = _message(call)
        if not (isinstance(message, ast.Constant) and isinstance(message.value, str)):
            yield Finding(path, call.lineno, "the log message is not constant; move what varies into fields")
        for line, field in _fields(call):
            if field not in allowed:
                yield Finding(path, line, f"log field {field!r} is not in {FIELDS}; use a listed field or add it")


def log_messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for call in _log_calls(tree):
        message = _message(call)
        if isinstance(message, ast.Constant) and isinstance(message.value, str):
            yield message.lineno, message.value


def _log_calls(tree: ast.Module) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="logger"), attr=method)) if method in METHODS | {"log"}:
                yield node


def _message(call: ast.Call) -> ast.expr | None:
    position = 1 if isinstance(call.func, ast.Attribute) and call.func.attr == "log" else 0
    return call.args[position] if len(call.args) > position else None


def _fields(call: ast.Call) -> Iterator[tuple[int, str]]:
    for keyword in call.keywords:
        if keyword.arg == "extra" and isinstance(keyword.value, ast.Dict):
            for key in keyword.value.keys:
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield key.lineno, key.value
