"""`python -m docgen [--check] docs/reference`: write the reference pages, or report the stale pages."""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from docgen.alert_pages import alerts_page
from docgen.condition_pages import conditions_page
from docgen.error_pages import errors_page
from docgen.label_pages import labels_page
from docgen.log_pages import logs_page
from docgen.metric_pages import metrics_page
from docgen.port_pages import ports_page
from docgen.record_pages import record_page
from docgen.resource_pages import resources_page
from docgen.setting_pages import settings_page
from docgen.stream_pages import streams_page
from docgen.timer_pages import timers_page

PAGES: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "alerts.md": alerts_page,
        "conditions.md": conditions_page,
        "errors.md": errors_page,
        "invocation-record.md": record_page,
        "labels.md": labels_page,
        "logs.md": logs_page,
        "metrics.md": metrics_page,
        "ports.md": ports_page,
        "resources.md": resources_page,
        "settings.md": settings_page,
        "streams.md": streams_page,
        "timers.md": timers_page,
    }
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m docgen", description=__doc__)
    parser.add_argument("folder", type=Path, help="the folder of the reference pages")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is stale")
    options = parser.parse_args()
    pages = {options.folder / name: page() for name, page in PAGES.items()}
    stale = [path for path, text in pages.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if options.check:
        for path in stale:
            sys.stderr.write(f"{path} differs from the code: run `make reference` and commit the result\n")
        return 1 if stale else 0
    options.folder.mkdir(parents=True, exist_ok=True)
    for path in stale:
        path.write_text(pages[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
