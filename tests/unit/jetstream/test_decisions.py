"""What is decided without a server: when to give up, how much to pull, what differs."""

import asyncio

import pytest

from gpu_runtime.contract import errors as faults
from gpu_runtime.jetstream import errors
from gpu_runtime.jetstream.connection_options import Options, without_secrets
from gpu_runtime.jetstream.delivery import Done, GiveUp, Outcome, Retry, decided, refused_at_receipt
from gpu_runtime.jetstream.errors import ApiFault, refusal
from gpu_runtime.jetstream.inbox import Inbox
from gpu_runtime.jetstream.puller import shortfall
from gpu_runtime.jetstream.stream_config import Difference, bucket_config, consumer_config, differences, stream_config
from gpu_runtime.jetstream.stream_specs import BucketSpec, ConsumerSpec, StreamSpec
from gpu_runtime.process.nats_setup import fault_of

STREAM = StreamSpec(name="S", subjects=("s.*",), retention="workqueue", discard="new", max_messages_per_subject=5)


@pytest.mark.parametrize(
    ("outcome", "attempt", "expected"),
    [
        (Done(), 5, Done()),
        (Retry("x"), 4, Retry("x")),
        (Retry("x"), 5, GiveUp("given up after 5 tries; the last one: x")),
        (Retry("x", 3.0), 9, GiveUp("given up after 9 tries; the last one: x")),
        (GiveUp("y", "k"), 1, GiveUp("y", "k")),
    ],
)
def test_the_last_retry_is_giving_up(outcome: Outcome, attempt: int, expected: Outcome) -> None:
    assert decided(outcome, attempt, 5) == expected
    assert decided(outcome, attempt, None) == outcome


def test_what_was_tried_often_enough_is_not_tried_again() -> None:
    assert refused_at_receipt(5, 5) is None
    assert refused_at_receipt(6, 5) is not None
    assert refused_at_receipt(1000, None) is None


@pytest.mark.parametrize(
    ("room", "taken", "asked", "wanted"),
    [
        (1, 0, 0, 1),
        (1, 1, 0, 0),
        (1, 0, 1, 0),
        (16, 0, 0, 16),
        (16, 3, 13, 0),
        (16, 0, 13, 0),  # three are missing; the thirteen that are asked for come first
        (16, 0, 8, 8),
        (16, 15, 0, 1),  # nothing is asked for: the one place must not stay empty
        (16, 20, 0, 0),
        (2, 0, 1, 1),
    ],
)
def test_never_more_is_asked_for_than_there_is_room(room: int, taken: int, asked: int, wanted: int) -> None:
    assert shortfall(room, taken, asked) == wanted


def test_what_is_wanted_does_not_differ_from_itself() -> None:
    for config in (
        stream_config(STREAM),
        bucket_config(BucketSpec(name="B", told_on="t")),
        consumer_config(ConsumerSpec("S", "c", inactive_seconds=5)),
    ):
        assert list(differences(config | {"metadata": {"a": "b"}}, config)) == []


def test_what_the_server_leaves_out_is_its_default() -> None:
    wanted = consumer_config(ConsumerSpec("S", "c"))
    said = {name: value for name, value in wanted.items() if name not in ("filter_subject", "inactive_threshold")}
    assert list(differences(said, wanted)) == []


def test_a_difference_names_field_found_and_wanted() -> None:
    wanted = stream_config(STREAM)
    assert list(differences(wanted | {"storage": "memory"}, wanted)) == [Difference("storage", "memory", "file")]


def test_a_window_is_never_longer_than_what_is_kept() -> None:
    short = StreamSpec(name="S", subjects=("s",), max_age_seconds=10)
    assert stream_config(short)["duplicate_window"] == 10_000_000_000


@pytest.mark.parametrize(
    ("kind", "description", "expected"),
    [
        (10059, "stream not found", errors.NotFound),
        (10071, "wrong last sequence: 1", errors.Outrun),
        (10164, "wrong last sequence", errors.Outrun),
        (10077, "maximum messages per subject exceeded", errors.Full),
        (10077, "maximum bytes exceeded", errors.Full),
        (10077, "disk broken", errors.Refused),
        (1, "", errors.Refused),
    ],
)
def test_refusals_are_told_apart(kind: int, description: str, expected: type[errors.Refused]) -> None:
    assert type(refusal(ApiFault(400, kind, description))) is expected


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (errors.Full("x"), faults.Overloaded),
        (errors.TooLarge("x"), faults.TooLarge),
        (errors.Outrun("x"), faults.Conflict),
        (errors.Unreachable("x", sent=True), faults.Unavailable),
        (errors.NoResponders("x"), faults.Unavailable),
        (errors.Refused("x"), faults.Unavailable),
        (errors.Misfit("stream S", "storage", "file", "memory"), faults.Rejected),
    ],
)
def test_callers_hear_of_them_in_the_platforms_words(error: errors.StreamError, fault: type) -> None:
    assert type(fault_of(error)) is fault


async def test_a_lost_connection_ends_every_wait_and_late_answers_harm_nobody() -> None:
    inbox = Inbox()
    expected = inbox.open()
    inbox.lose("gone")
    with pytest.raises(errors.Unreachable, match="gone"):
        await expected.answer
    with inbox.expect() as given_up:
        given_up.answer.cancel()
        inbox.lose("again")
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


def test_addresses_are_logged_without_secrets() -> None:
    assert without_secrets("nats://user:word@host:4222") == "nats://host:4222"
    assert Options(("tls://h",)).wants_tls
    assert not Options(("nats://h",)).wants_tls
