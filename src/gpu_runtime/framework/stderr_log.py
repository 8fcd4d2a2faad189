"""Writes log lines to stderr, which is the log of the container.

The framework does not use `logging`, because the traceback of a failed handler must always reach the log. By default,
the logging configuration of a user disables every logger that already exists.
"""

import contextlib
import sys
import traceback


def log_line(line: str) -> None:
    """Write one line. Ignore the error if stderr is full, closed or missing."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"gpu_runtime.framework: {line}\n")
        sys.stderr.flush()


def log_traceback(line: str, error: BaseException) -> None:
    """Write one line, followed by the traceback of the error."""
    log_line(f"{line}\n{''.join(_format_traceback(error)).rstrip()}")


def _format_traceback(error: BaseException) -> list[str]:
    try:
        return traceback.format_exception(type(error), error, error.__traceback__)
    except BaseException as format_error:  # noqa: BLE001 - formatting calls methods of a user's exception class
        return [f"{type(error).__name__}; formatting its traceback failed with {type(format_error).__name__}"]
