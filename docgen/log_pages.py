"""docs/reference/logs.md: the fields of log lines."""

import yaml

from checks.log_calls import FIELDS
from checks.source_files import ROOT
from docgen.markdown import code, page, table


def logs_page() -> str:
    fields = yaml.safe_load((ROOT / FIELDS).read_text(encoding="utf-8"))
    rows = [(code(_printed(name)), meaning) for name, meaning in fields.items()]
    introduction = (
        "Every process writes log lines to standard error, as JSON (`log.format: json`, the default) or as text. Every line has"
        " the fields `time`, `level`, `logger` and `message`. The text of a message is constant, so you can search for the"
        " text. The fields in the table below contain the variable values. A field has the same meaning in every process. The logger `gpu_runtime.audit` writes"
        " one line for each HTTP request that can change an object, and for each read of invocations, results and dead letters. The"
        " logger `gpu_runtime.access` writes one line at level debug for each other HTTP request. [Security](../security.md#audit-log)"
        " describes the audit log. In the format `text`, values with spaces or unusual characters have quotes, and control characters are"
        " escaped as in JSON."
    )
    return page("Log fields", introduction, table(("field", "meaning"), rows))


def _printed(name: str) -> str:
    return "name" if name == "object_name" else name
