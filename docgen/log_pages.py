"""docs/reference/logs.md: the fields of log lines."""

import yaml

from checks.log_calls import FIELDS
from checks.source_files import ROOT
from docgen.markdown import code, page, table


def logs_page() -> str:
    fields = yaml.safe_load((ROOT / FIELDS).read_text(encoding="utf-8"))
    rows = [(code(_printed(name)), meaning) for name, meaning in fields.items()]
    introduction = (
        "Every process writes one line per event to standard error: JSON (`log.format: json`, the default) or text. Every line"
        " has `time`, `level`, `logger` and `message`. The message is constant, so it can be searched; what varies is in the"
        " fields below. A field has the same meaning in every process. The logger `gpu_runtime.audit` has one line per write"
        " to the HTTP API; `gpu_runtime.access` has one line per read."
    )
    return page("Log fields", introduction, table(("field", "meaning"), rows))


def _printed(name: str) -> str:
    return "name" if name == "object_name" else name
