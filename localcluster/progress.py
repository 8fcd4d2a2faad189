"""Prints the progress of long steps: one line for each step, with a bar if the total amount of work is known."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

BAR_WIDTH = 30
UPDATE_INTERVAL_SECONDS = 10.0


class ProgressStep:
    """One running step. On a terminal it redraws its line; otherwise it prints a new line every few seconds."""

    def __init__(self, title: str, out: TextIO) -> None:
        self.title = title
        self.started_at = time.monotonic()
        self._out = out
        self._is_terminal = out.isatty()
        self._next_line_at = self.started_at + UPDATE_INTERVAL_SECONDS
        if self._is_terminal:
            self._draw(f"  … {title}")

    def update(self, done: int, total: int, detail: str = "") -> None:
        share = min(done / total, 1.0) if total else 0.0
        filled = round(share * BAR_WIDTH)
        bar = f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {share:4.0%}"
        if self._is_terminal:
            self._draw(f"  … {self.title} {bar} {detail}")
        elif time.monotonic() >= self._next_line_at:
            self._next_line_at = time.monotonic() + UPDATE_INTERVAL_SECONDS
            print(f"  … {self.title} {bar} {detail}", file=self._out, flush=True)

    def finish(self, mark: str) -> None:
        seconds = time.monotonic() - self.started_at
        line = f"  {mark} {self.title} ({seconds:.1f} s)"
        if self._is_terminal:
            self._draw(line)
            print(file=self._out)
        else:
            print(line, file=self._out, flush=True)

    def _draw(self, line: str) -> None:
        print(f"\r\x1b[2K{line[:150]}", end="", file=self._out, flush=True)


@contextmanager
def progress_step(title: str) -> Iterator[ProgressStep]:
    step = ProgressStep(title, sys.stderr)
    try:
        yield step
    except BaseException:
        step.finish("✗")
        raise
    step.finish("✓")
