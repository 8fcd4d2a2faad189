"""docs/reference/alerts.md: every alert with its severity, delay and meaning."""

from collections.abc import Iterator

import yaml

from checks.source_files import ROOT
from docgen.markdown import page, table

RULES = "config/prometheus/alerts.yaml"


def alerts_page() -> str:
    introduction = (
        f"This page lists every alert of `{RULES}`. An alert fires when its expression has been true for the time in the column"
        " *for*. If this time is 0m, the alert fires immediately. Prometheus replaces `{{ … }}` with a value. The name of an alert"
        " is a link to its runbook."
    )
    return page("Alerts", introduction, table(("alert", "severity", "for", "meaning"), _alerts()))


def _alerts() -> Iterator[tuple[str, ...]]:
    rules = yaml.safe_load((ROOT / RULES).read_text(encoding="utf-8"))
    for group in rules["spec"]["groups"]:
        for rule in group["rules"]:
            link = f"[{rule['alert']}](../operations/alerts.md#{rule['alert'].lower()})"
            meaning = rule["annotations"]["description"]
            yield link, rule["labels"]["severity"], rule.get("for", "0m"), meaning
