"""The JetStream logic that needs no server: dead-lettering, pull batch sizes, config comparison, error mapping."""

import asyncio

import pytest

from gpu_runtime.contract import errors as faults
from gpu_runtime.jetstream import errors
from gpu_runtime.jetstream.connection_options import ConnectionOptions, redact_url
from gpu_runtime.jetstream.delivery import (
    AckDelivery,
    DeadLetterDelivery,
    DeliveryOutcome,
    NakDelivery,
    dead_letter_if_exhausted,
    limit_deliveries,
)
from gpu_runtime.jetstream.errors import ApiErrorBody, api_error_from
from gpu_runtime.jetstream.inbox import Inbox
from gpu_runtime.jetstream.puller import pull_batch_size
from gpu_runtime.jetstream.stream_config import (
    ConfigDifference,
    bucket_config,
    config_differences,
    consumer_config,
    stream_config,
)
from gpu_runtime.jetstream.stream_specs import BucketSpec, ConsumerSpec, StreamSpec
from gpu_runtime.process.nats_setup import fault_from_nats_error

STREAM = StreamSpec(name="S", subjects=("s.*",), retention="workqueue", discard="new", max_messages_per_subject=5)


@pytest.mark.parametrize(
    ("outcome", "delivery_count", "expected"),
    [
        (AckDelivery(), 5, AckDelivery()),
        (NakDelivery("x"), 4, NakDelivery("x")),
        (NakDelivery("x"), 5, DeadLetterDelivery("dead-lettered after 5 deliveries; last failure: x")),
        (NakDelivery("x", 3.0), 9, DeadLetterDelivery("dead-lettered after 9 deliveries; last failure: x")),
        (DeadLetterDelivery("y", "k"), 1, DeadLetterDelivery("y", "k")),
    ],
)
def test_nak_at_max_deliveries_becomes_a_dead_letter(
    outcome: DeliveryOutcome, delivery_count: int, expected: DeliveryOutcome
) -> None:
    assert limit_deliveries(outcome, delivery_count, 5) == expected
    assert limit_deliveries(outcome, delivery_count, None) == outcome


def test_delivery_above_max_deliveries_is_dead_lettered_at_receipt() -> None:
    assert dead_letter_if_exhausted(5, 5) is None
    assert dead_letter_if_exhausted(6, 5) is not None
    assert dead_letter_if_exhausted(1000, None) is None


@pytest.mark.parametrize(
    ("max_in_flight", "in_flight", "requested", "batch_size"),
    [
        (1, 0, 0, 1),
        (1, 1, 0, 0),
        (1, 0, 1, 0),
        (16, 0, 0, 16),
        (16, 3, 13, 0),
        (16, 0, 13, 0),  # only three are free: the open requests for thirteen are filled first
        (16, 0, 8, 8),
        (16, 15, 0, 1),  # no request is open: the last free slot must not stay unused
        (16, 20, 0, 0),
        (2, 0, 1, 1),
    ],
)
def test_pull_batch_never_exceeds_free_capacity(
    max_in_flight: int, in_flight: int, requested: int, batch_size: int
) -> None:
    assert pull_batch_size(max_in_flight, in_flight, requested) == batch_size


def test_equal_configs_have_no_differences() -> None:
    for config in (
        stream_config(STREAM),
        bucket_config(BucketSpec(name="B", republish_to="t")),
        consumer_config(ConsumerSpec("S", "c", inactive_threshold_seconds=5)),
    ):
        assert list(config_differences(config | {"metadata": {"a": "b"}}, config)) == []


def test_field_omitted_by_the_server_equals_its_default() -> None:
    desired = consumer_config(ConsumerSpec("S", "c"))
    actual = {name: value for name, value in desired.items() if name not in ("filter_subject", "inactive_threshold")}
    assert list(config_differences(actual, desired)) == []


def test_difference_has_field_actual_and_desired_value() -> None:
    desired = stream_config(STREAM)
    assert list(config_differences(desired | {"storage": "memory"}, desired)) == [
        ConfigDifference("storage", "memory", "file")
    ]


def test_duplicate_window_never_exceeds_max_age() -> None:
    short = StreamSpec(name="S", subjects=("s",), max_age_seconds=10)
    assert stream_config(short)["duplicate_window"] == 10_000_000_000


@pytest.mark.parametrize(
    ("err_code", "description", "expected"),
    [
        (10059, "stream not found", errors.NatsNotFound),
        (10071, "wrong last sequence: 1", errors.WrongLastSequence),
        (10164, "wrong last sequence", errors.WrongLastSequence),
        (10077, "maximum messages per subject exceeded", errors.StreamFull),
        (10077, "maximum bytes exceeded", errors.StreamFull),
        (10077, "disk broken", errors.JetStreamApiError),
        (1, "", errors.JetStreamApiError),
    ],
)
def test_api_errors_map_to_error_classes(
    err_code: int, description: str, expected: type[errors.JetStreamApiError]
) -> None:
    assert type(api_error_from(ApiErrorBody(400, err_code, description))) is expected


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (errors.StreamFull("x"), faults.Overloaded),
        (errors.NatsMessageTooLarge("x"), faults.TooLarge),
        (errors.WrongLastSequence("x"), faults.WriteConflict),
        (errors.NatsUnreachable("x", sent=True), faults.Unavailable),
        (errors.NoResponders("x"), faults.Unavailable),
        (errors.JetStreamApiError("x"), faults.Unavailable),
        (errors.ConfigMismatch("stream S", "storage", "file", "memory"), faults.Rejected),
    ],
)
def test_jetstream_errors_map_to_faults(error: errors.JetStreamError, fault: type) -> None:
    assert type(fault_from_nats_error(error)) is fault


async def test_lost_connection_fails_every_pending_reply() -> None:
    inbox = Inbox()
    with inbox.expect() as expected:
        inbox.fail_pending("connection reset")
        with pytest.raises(errors.NatsUnreachable, match="connection reset"):
            await expected.reply
    with inbox.expect() as cancelled:
        cancelled.reply.cancel()
        inbox.fail_pending("again")
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


def test_urls_are_logged_without_secrets() -> None:
    assert redact_url("nats://user:word@host:4222") == "nats://host:4222"
    assert ConnectionOptions(("tls://h",)).requires_tls
    assert not ConnectionOptions(("nats://h",)).requires_tls
