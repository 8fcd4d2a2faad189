"""Module names and class names are unique, so that searching for a name finds one thing."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import PurePath

from checks.finding import Finding
from checks.source_files import parsed, python_files

CONVENTIONAL = frozenset(
    {
        "__init__", "__main__", "conftest", "errors", "main", "metrics", "observe", "reconcile", "requests", "routes",
        "rules", "service", "settings", "status", "view",
    }
)  # fmt: skip
"""Module names whose meaning is the same in every package. They may repeat."""

KINDS_FOLDER = "children"
"""A module in this folder has the name of the Kubernetes kind that it builds, and may repeat."""

SUPPORT_FOLDERS = ("tests", "bench", "localcluster", "checks", "docgen")


def check_unique_names() -> Iterator[Finding]:
    yield from repeated_modules(python_files("src"))
    yield from repeated_modules(python_files(*SUPPORT_FOLDERS))
    yield from repeated_classes((path, parsed(path)) for path in python_files("src"))


def repeated_modules(paths: Iterable[str]) -> Iterator[Finding]:
    places = defaultdict(list)
    for path in paths:
        name = PurePath(path)
        if name.stem not in CONVENTIONAL and name.parent.name != KINDS_FOLDER:
            places[name.stem].append(path)
    for stem, found in places.items():
        for path in found[1:]:
            yield Finding(path, 1, f"module name {stem} is already used by {found[0]}; choose a unique name")


def repeated_classes(modules: Iterable[tuple[str, ast.Module]]) -> Iterator[Finding]:
    first: dict[str, str] = {}
    for path, tree in modules:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                other = first.setdefault(node.name, f"{path}:{node.lineno}")
                if other != f"{path}:{node.lineno}":
                    yield Finding(path, node.lineno, f"class {node.name} is already defined at {other}; rename one")
