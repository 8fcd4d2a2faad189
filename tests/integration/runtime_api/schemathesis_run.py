"""Checks with schemathesis whether a running API conforms to its OpenAPI document.

schemathesis sends requests that the document allows and requests that it forbids. It runs as a separate process,
because every test run would load its pytest plugin."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

# The API may reject requests that the document allows, because a schema cannot express rules across fields and
# references to existing objects.
EXCLUDED_CHECK = "positive_data_acceptance"

# Invalid data may also be too large, and is then rejected with 413. Other checks verify that the status is documented.
SCHEMATHESIS_CONFIG = """
[checks.negative_data_rejection]
expected-statuses = ["4XX"]
"""


@dataclass(frozen=True)
class ConformanceReport:
    failures: frozenset[str]
    """The failed checks, by their schemathesis names."""
    untested_count: int
    """The number of operations in the document that were not tested."""
    output: str
    """The requests and responses, to diagnose a failed test."""


def run_schemathesis(
    base_url: str, token: str, scratch: Path, phases: str = "examples,coverage,fuzzing,stateful"
) -> ConformanceReport:
    """Test an API that serves its own document. The requests are the same in every run."""
    (scratch / "schemathesis.toml").write_text(SCHEMATHESIS_CONFIG, encoding="utf-8")
    report = scratch / "report.json"
    process = subprocess.run(
        _command(base_url, token, phases, report), cwd=scratch, capture_output=True, text=True, timeout=480, check=False
    )
    output = process.stdout + process.stderr
    assert report.exists(), output
    result = json.loads(report.read_text())
    assert result["complete"], output
    assert not result["errors"], output
    operations = result["operations"]
    failures = frozenset(failure["type"] for failure in result["failures"])
    return ConformanceReport(failures, operations["total"] - operations["tested"], output)


def _command(base_url: str, token: str, phases: str, report: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{base_url}/openapi.json"),
        f"--url={base_url}",
        f"--header=Authorization: Bearer {token}",
        f"--phases={phases}",
        "--checks=all",
        f"--exclude-checks={EXCLUDED_CHECK}",
        "--mode=all",
        "--max-examples=25",
        "--generation-deterministic",
        "--workers=1",
        "--request-timeout=60",
        "--continue-on-failure",
        "--warnings=off",
        f"--report-json-path={report}",
        "--no-color",
    ]
