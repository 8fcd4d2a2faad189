"""The check of diagrams uses the real Mermaid parser."""

from collections.abc import Iterator
from contextlib import contextmanager

from checks.mermaid_diagrams import missing_programs, parse_errors
from localcluster.errors import MissingRequirement
from tests.conftest import enter_or_skip


@contextmanager
def mermaid_parser() -> Iterator[None]:
    if missing := missing_programs():
        raise MissingRequirement(missing)
    yield


def test_mermaid_parser_accepts_a_diagram_and_rejects_text() -> None:
    with enter_or_skip(mermaid_parser()):
        good, bad = parse_errors(["stateDiagram-v2\n  [*] --> ready\n", "sequenceDiagram\n  a ->>>> b\n"])

    assert good == ""
    assert "Parse error" in bad
