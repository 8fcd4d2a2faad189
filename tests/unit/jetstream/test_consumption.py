"""What a consumption says of itself."""

from types import SimpleNamespace
from typing import Any, cast

from gpu_runtime.jetstream.pull_consumer import Consumption
from gpu_runtime.jetstream.stream_specs import ConsumerSpec


def test_who_has_not_begun_to_consume_is_not_ready() -> None:
    publisher: Any = SimpleNamespace(connection=None)
    consumption = Consumption(publisher, ConsumerSpec("STREAM", "consumer"), cast(Any, None), cast(Any, None))
    assert consumption.problem() == "consuming has not begun"
