"""Lines for the container's log, on stderr.

Not through `logging`: a user's logging configuration silences, by default, every logger that exists before it, and the
traceback of a failed handler must not get lost.
"""

import contextlib
import sys
import traceback


def log_line(line: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr is full, closed or absent
        sys.stderr.write(f"gpu_runtime.framework: {line}\n")
        sys.stderr.flush()


def log_traceback(line: str, error: BaseException) -> None:
    log_line(f"{line}\n{''.join(_format_traceback(error)).rstrip()}")


def _format_traceback(error: BaseException) -> list[str]:
    try:
        return traceback.format_exception(type(error), error, error.__traceback__)
    except BaseException as unprintable:  # noqa: BLE001 - whatever a user's exception does when it is shown
        return [f"{type(error).__name__}, whose traceback cannot be shown: {type(unprintable).__name__}"]
