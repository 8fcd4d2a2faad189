"""A redrive of a dead letter enqueues a new invocation, always the same one for the same dead letter."""

from datetime import UTC, datetime

import pytest
from msgspec import structs

from gpu_runtime.contract.errors import NotRedrivable
from gpu_runtime.contract.messages.dead_letter import DeadLetter
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import Invocation, invocation_id_errors
from gpu_runtime.contract.messages.invocation_messages import invocation_hash
from gpu_runtime.contract.messages.message_codec import Message, encode
from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.runtime_api.dead_letters.redrive import redrive_invocation_id, redriven_invocation, redriven_result

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
INVOCATION = Invocation(
    invocation_id="i",
    serverless_request_id="f",
    mode="sync",
    body=b"1",
    reply_to="_INBOX.x",
    enqueued_at=NOW,
    timeout_seconds=5.0,
)


def dead_letter(source: Stream, data: bytes) -> DeadLetter:
    return DeadLetter(
        id=f"{source}-7",
        source=source,
        serverless_request_id="f",
        subject=f"runtime.serverless.{source}.f",
        headers={"Nats-Msg-Id": "i", "Gpu-Runtime-Revision": "3"},
        data=data,
        failure_class=FailureClass.INTERNAL,
        reason="",
        delivery_count=5,
        published_at=NOW,
        dead_lettered_at=NOW,
    )


@pytest.mark.parametrize(
    ("source", "message"),
    [(Stream.INVOKE, INVOCATION), (Stream.DISPATCH, Dispatch(invocation=INVOCATION, deadline=NOW, dispatched_at=NOW))],
)
def test_redriven_invocation_is_async_with_a_derived_id(source: Stream, message: Message) -> None:
    redriven = redriven_invocation(dead_letter(source, encode(message)))
    assert (redriven.invocation_id, redriven.mode, redriven.reply_to, redriven.enqueued_at) == (
        *(f"i-redrive-{source}-7", "async", ""),
        None,
    )
    assert invocation_hash(redriven) == invocation_hash(INVOCATION)


def test_long_invocation_id_is_truncated_to_a_valid_id() -> None:
    invocation_id = redrive_invocation_id("x" * 128, "invoke-123456")
    assert len(invocation_id) == 128
    assert not list(invocation_id_errors(invocation_id))
    assert invocation_id.endswith("-redrive-invoke-123456")


def test_undecodable_dead_letter_is_not_redriven() -> None:
    with pytest.raises(NotRedrivable, match="dead letter invoke-7 cannot be redriven"):
        redriven_invocation(dead_letter(Stream.INVOKE, b"{"))


def test_redriven_result_is_unchanged() -> None:
    redriven = redriven_result(dead_letter(Stream.RESULT, b"anything"))
    assert (redriven.subject, redriven.data) == ("runtime.serverless.result.f", b"anything")
    assert redriven.headers == {"Gpu-Runtime-Revision": "3"}
    assert redriven.message_id.startswith("redrive-result-7-")


@pytest.mark.parametrize("changed", [{"invocation_id": "two words"}, {"serverless_request_id": "Not.A.Token"}])
def test_dead_letter_with_invalid_ids_is_not_redriven(changed: dict[str, str]) -> None:
    invalid = structs.replace(INVOCATION, **changed)
    with pytest.raises(NotRedrivable, match="dead letter invoke-7 cannot be redriven"):
        redriven_invocation(dead_letter(Stream.INVOKE, encode(invalid)))
