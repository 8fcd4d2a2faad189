"""What a consumption says of itself."""

from types import SimpleNamespace
from typing import Any, cast

from gpu_runtime.jetstream.pull_consumer import PullConsumer
from gpu_runtime.jetstream.stream_specs import ConsumerSpec


def test_consumer_is_not_ready_before_it_starts() -> None:
    publisher: Any = SimpleNamespace(connection=None)
    consumption = PullConsumer(publisher, ConsumerSpec("STREAM", "consumer"), cast(Any, None), cast(Any, None))
    assert consumption.problem() == "consuming has not begun"
