"""Counts and logs the messages that a process ignores because they have no valid ticket.

An attacker may send very many of these messages. So the process does not dead-letter them, and limits the number
of log lines.
"""

import logging
import time
from collections.abc import Callable

from prometheus_client import Counter

from gpu_runtime.contract.messages.invocation_ticket import InvalidTicket
from gpu_runtime.contract.messages.subjects import Stream

logger = logging.getLogger(__name__)

IGNORED_LOG_INTERVAL_SECONDS = 10.0
"""Minimum interval between two log lines about ignored messages."""


class IgnoredMessages:
    def __init__(self, counter: Counter, clock: Callable[[], float] = time.monotonic) -> None:
        self._counter, self._clock = counter, clock
        self._not_logged = 0
        self._next_log_at = 0.0

    def add(self, stream: Stream, subject: str, error: InvalidTicket) -> None:
        self._counter.labels(stream.name).inc()
        self._not_logged += 1
        if self._clock() < self._next_log_at:
            return
        fields = {"stream": stream.name, "subject": subject, "reason": error.message, "ignored": self._not_logged}
        self._not_logged, self._next_log_at = 0, self._clock() + IGNORED_LOG_INTERVAL_SECONDS
        logger.warning(
            "messages without a valid ticket ignored; subject and reason are those of the last message", extra=fields
        )
