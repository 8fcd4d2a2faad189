"""The readiness of a pull consumer."""

from typing import Any, cast

from gpu_runtime.jetstream.pull_consumer import PullConsumer
from gpu_runtime.jetstream.stream_specs import ConsumerSpec


def test_consumer_is_not_ready_before_it_starts() -> None:
    consumer = PullConsumer(cast(Any, None), ConsumerSpec("STREAM", "consumer"), cast(Any, None), cast(Any, None))
    assert consumer.problem() == "the consumer has not started"
