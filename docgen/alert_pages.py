"""docs/reference/alerts.md: every alert with its severity, delay and meaning."""

from collections.abc import Iterator

import yaml

from checks.source_files import ROOT
from docgen.markdown import page, table

RULES = "config/prometheus/alerts.yaml"


def alerts_page() -> str:
    introduction = f"Every alert of `{RULES}`. An alert fires when its expression holds for the given time. The link leads to its runbook."
    return page("Alerts", introduction, table(("alert", "severity", "for", "meaning"), _alerts()))


def _alerts() -> Iterator[tuple[str, ...]]:
    rules = yaml.safe_load((ROOT / RULES).read_text(encoding="utf-8"))
    for group in rules["spec"]["groups"]:
        for rule in group["rules"]:
            link = f"[{rule['alert']}](../operations/alerts.md#{rule['alert'].lower()})"
            meaning = rule["annotations"]["description"]
            yield link, rule["labels"]["severity"], rule.get("for", "at once"), meaning
