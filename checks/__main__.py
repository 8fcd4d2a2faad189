"""Run every check, print every finding as `path:line: sentence`, and exit with 1 if there is one."""

import sys
from collections.abc import Callable, Iterable

from checks.banned_words import check_banned_words
from checks.finding import Finding
from checks.log_calls import check_log_calls
from checks.markdown_links import check_links
from checks.mermaid_diagrams import check_diagrams
from checks.protocol_states import check_protocol_states
from checks.settings_keys import check_settings_keys
from checks.unique_names import check_unique_names

CHECKS: tuple[Callable[[], Iterable[Finding]], ...] = (
    check_unique_names,
    check_banned_words,
    check_log_calls,
    check_settings_keys,
    check_protocol_states,
    check_links,
    check_diagrams,
)


def main() -> int:
    findings = [finding for check in CHECKS for finding in check()]
    for finding in findings:
        print(finding, file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
