"""The states of a protocol are named only where they are decided or shown.

A module that names a state contains a decision of the protocol. Such a decision belongs to the pure module.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from checks.finding import Finding
from checks.source_files import parsed, python_files

ALLOWED_FILES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "RecordState": (
            "src/gpu_runtime/contract/messages/invocation_record.py",
            "src/gpu_runtime/runtime_api/invocations/requests.py",  # the states that the API shows
        ),
        "OperationState": (
            "src/gpu_runtime/contract/operation_rules.py",
            "src/gpu_runtime/contract/operation_transitions.py",
            "src/gpu_runtime/contract/crd/operation.py",  # the states in the schema of the resource
            "src/gpu_runtime/runtime_api/jobs/view.py",  # the states that the API shows
        ),
    }
)
"""The files that may name each enum of states: its pure module, views and metrics."""


def check_protocol_states() -> Iterator[Finding]:
    yield from misplaced_states(((path, parsed(path)) for path in python_files("src")), ALLOWED_FILES)


def misplaced_states(
    modules: Iterable[tuple[str, ast.Module]], allowed_files: Mapping[str, tuple[str, ...]]
) -> Iterator[Finding]:
    for path, tree in modules:
        for line, name in sorted(set(_names(tree))):
            if name in allowed_files and path not in allowed_files[name]:
                yield Finding(path, line, f"{name} is named here; move the decision to {allowed_files[name][0]}")


def _names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield node.lineno, name
            case ast.alias(name=name):
                yield node.lineno, name.rpartition(".")[2]
