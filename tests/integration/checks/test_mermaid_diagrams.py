"""The check of diagrams uses the real Mermaid parser."""

from checks.mermaid_diagrams import parse_errors


def test_mermaid_parser_accepts_a_diagram_and_rejects_text() -> None:
    good, bad = parse_errors(["stateDiagram-v2\n  [*] --> ready\n", "sequenceDiagram\n  a ->>>> b\n"])

    assert good == ""
    assert "Parse error" in bad
