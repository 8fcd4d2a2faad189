"""What was given up runs again as a new invocation, always the same one for one letter."""

from datetime import UTC, datetime

import pytest
from msgspec import structs

from gpu_runtime.contract.errors import Conflict
from gpu_runtime.contract.messages.dead_letter import DeadLetter
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_id import invocation_hash, invocation_id_problems
from gpu_runtime.contract.messages.message_codec import Message, encode
from gpu_runtime.contract.messages.subjects import Queue
from gpu_runtime.runtime_api.dead_letters.redrive import invocation_again, new_id, result_again

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
CALL = Invocation(
    invocation_id="i",
    serverless_request_id="f",
    mode="sync",
    body=b"1",
    reply_to="_INBOX.x",
    enqueued_at=NOW,
    timeout_seconds=5.0,
)


def letter(source: Queue, data: bytes) -> DeadLetter:
    return DeadLetter(
        id=f"{source}-7",
        source=source,
        serverless_request_id="f",
        subject=f"runtime.serverless.{source}.f",
        headers={"Nats-Msg-Id": "i", "Gpu-Runtime-Revision": "3"},
        data=data,
        failure_class=FailureClass.INTERNAL,
        reason="",
        attempts=5,
        stored_at=NOW,
        dead_at=NOW,
    )


@pytest.mark.parametrize(
    ("source", "message"),
    [(Queue.INVOKE, CALL), (Queue.DISPATCH, Dispatch(invocation=CALL, deadline=NOW, dispatched_at=NOW))],
)
def test_the_same_is_asked_for_by_nobody_who_waits(source: Queue, message: Message) -> None:
    again = invocation_again(letter(source, encode(message)))
    assert (again.invocation_id, again.mode, again.reply_to, again.enqueued_at) == (
        *(f"i-redrive-{source}-7", "async", ""),
        None,
    )
    assert invocation_hash(again) == invocation_hash(CALL)


def test_a_long_id_is_cut_and_stays_an_id() -> None:
    made = new_id("x" * 128, "invoke-123456")
    assert len(made) == 128
    assert not list(invocation_id_problems(made))
    assert made.endswith("-redrive-invoke-123456")


def test_what_cannot_be_read_stays() -> None:
    with pytest.raises(Conflict, match="dead letter invoke-7 cannot be sent again"):
        invocation_again(letter(Queue.INVOKE, b"{"))


def test_a_result_is_sent_as_it_was() -> None:
    again = result_again(letter(Queue.RESULT, b"anything"))
    assert (again.subject, again.data) == ("runtime.serverless.result.f", b"anything")
    assert again.headers == {"Gpu-Runtime-Revision": "3"}
    assert again.message_id.startswith("redrive-result-7-")


@pytest.mark.parametrize("changed", [{"invocation_id": "two words"}, {"serverless_request_id": "Not.A.Token"}])
def test_what_died_of_its_own_names_is_not_sent_again(changed: dict[str, str]) -> None:
    dead = structs.replace(CALL, **changed)
    with pytest.raises(Conflict, match="dead letter invoke-7 cannot be sent again"):
        invocation_again(letter(Queue.INVOKE, encode(dead)))
