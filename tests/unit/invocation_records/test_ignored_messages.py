"""Every message without a valid ticket is counted, and the log has at most one line about them in 10 s."""

import logging

import pytest
from prometheus_client import CollectorRegistry

from gpu_runtime.contract.messages.invocation_ticket import InvalidTicket
from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.invocation_records.ignored_messages import IGNORED_LOG_INTERVAL_SECONDS, IgnoredMessages
from gpu_runtime.result_store.metrics import ResultStoreMetrics


def test_flood_of_messages_is_counted_and_logged_at_a_limited_rate(caplog: pytest.LogCaptureFixture) -> None:
    registry, now = CollectorRegistry(), [100.0]
    ignored = IgnoredMessages(ResultStoreMetrics(registry).ignored_messages, lambda: now[0])
    with caplog.at_level(logging.WARNING):
        for _ in range(1000):
            ignored.add(Stream.RESULT, "s", InvalidTicket("the message has no ticket"))
        now[0] += IGNORED_LOG_INTERVAL_SECONDS
        ignored.add(Stream.RESULT, "s", InvalidTicket("the message has no ticket"))
    assert registry.get_sample_value("gpu_runtime_messages_ignored_total", {"stream": "RESULT"}) == 1001
    assert [vars(each)["ignored"] for each in caplog.records] == [1, 1000]
