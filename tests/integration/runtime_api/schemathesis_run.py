"""Whether a running API does what its document says: schemathesis sends what the document allows and what it does not.

It runs as a program of its own: as a plugin of pytest it would be loaded by every run, also by those without it.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

# What the document cannot say (rules across fields, names that must exist) may refuse what the document allows.
EXCLUDED_CHECK = "positive_data_acceptance"

# 413 is a refusal, too: what is wrong may also be too large. Which statuses are right, other checks know.
SCHEMATHESIS_CONFIG = """
[checks.negative_data_rejection]
expected-statuses = ["4XX"]
"""


@dataclass(frozen=True)
class ConformanceReport:
    failures: frozenset[str]
    """What was found, by schemathesis' names for it."""
    untested_count: int
    """Operations of the document that were not tried."""
    output: str
    """What was sent and answered, for the reader of a failed test."""


def run_schemathesis(
    base_url: str, token: str, scratch: Path, phases: str = "examples,coverage,fuzzing,stateful"
) -> ConformanceReport:
    """The verdict on an API that serves its own document. The same API gets the same requests every time."""
    (scratch / "schemathesis.toml").write_text(SCHEMATHESIS_CONFIG, encoding="utf-8")
    report = scratch / "report.json"
    done = subprocess.run(
        _command(base_url, token, phases, report), cwd=scratch, capture_output=True, text=True, timeout=480, check=False
    )
    story = done.stdout + done.stderr
    assert report.exists(), story
    found = json.loads(report.read_text())
    assert found["complete"], story
    assert not found["errors"], story
    operations = found["operations"]
    failures = frozenset(failure["type"] for failure in found["failures"])
    return ConformanceReport(failures, operations["total"] - operations["tested"], story)


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
