"""A forged dead letter makes an operator neither act on another function nor on NATS itself."""

import asyncio
import base64
import contextlib
from typing import Any

import msgspec

from gpu_runtime.contract.errors import RuntimeFault
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.message_codec import decode, encode
from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.jetstream.errors import JetStreamError
from gpu_runtime.runtime_api.dead_letters.requests import ListDeadLetters
from gpu_runtime.runtime_api.dead_letters.service import DeadLetterService
from gpu_runtime.runtime_api.dead_letters.view import DeadLetterView
from tests.attacks.messages.message_attack import OTHER, OWN, MessageAttack, forged_result, under_attack
from tests.unit.serverless.simulated_processes import TOPOLOGY
from tests.unit.serverless.simulated_processes import simulated_function_id as ids

PURGE = f"$JS.API.STREAM.PURGE.{TOPOLOGY.stream_name(Stream.DISPATCH)}"


def forged_letter(data: bytes, **changes: object) -> bytes:
    letter: dict[str, Any] = {
        "version": 1,
        "id": "dispatch-1",
        "source": "dispatch",
        "functionID": ids(OWN),
        "serverlessRequestID": OWN,
        "subject": TOPOLOGY.subjects.dispatch(ids(OWN)),
        "data": base64.b64encode(data).decode(),
        "class": "function_crashed",
        "reason": "forged",
        "deliveryCount": 1,
        "publishedAt": "2026-01-01T00:00:00Z",
        "deadLetteredAt": "2026-01-01T00:00:00Z",
    }
    return msgspec.json.encode(letter | changes)


async def send_letter(attack: MessageAttack, letter: bytes) -> None:
    """Publish a letter on the only dead-letter subject that a worker of `own` may use."""
    await attack.publish(TOPOLOGY.subjects.dead_letter(Stream.DISPATCH, ids(OWN)), letter)


def dead_letters(attack: MessageAttack) -> DeadLetterService:
    return attack.dead_letters


async def listed(attack: MessageAttack) -> list[DeadLetterView]:
    views, _ = await dead_letters(attack).list(ListDeadLetters())
    return views


async def redrive_all(attack: MessageAttack) -> None:
    for each in await listed(attack):
        with contextlib.suppress(RuntimeFault, JetStreamError):
            await dead_letters(attack).redrive(each.id)
    await asyncio.sleep(1)


def invoked(attack: MessageAttack, function: str) -> list[bytes]:
    return [each.data for each in attack.stored if each.subject == TOPOLOGY.subjects.invoke(ids(function))]


@under_attack
async def test_redrive_sends_no_request_to_the_api_of_jetstream(attack: MessageAttack) -> None:
    await send_letter(attack, forged_letter(b"{}", source="result", subject=PURGE))
    await send_letter(attack, forged_letter(encode(forged_result(OWN, "i")), source="result", subject=PURGE))
    await redrive_all(attack)
    assert PURGE not in attack.requested_subjects


@under_attack
async def test_redrive_runs_no_other_function(attack: MessageAttack) -> None:
    await attack.invoke(OWN, "mine")
    dispatch = decode(attack.dispatched(OWN).data, Dispatch)
    other = msgspec.structs.replace(dispatch.invocation, **attack.identity(OTHER))
    forged = encode(msgspec.structs.replace(dispatch, invocation=other))
    headers = attack.dispatched_headers(OWN)
    await send_letter(attack, forged_letter(forged, serverlessRequestID=OTHER, functionID=ids(OTHER), headers=headers))
    await redrive_all(attack)
    assert invoked(attack, OTHER) == []


@under_attack
async def test_redrive_runs_no_payload_that_no_caller_sent(attack: MessageAttack) -> None:
    await attack.invoke(OWN, "mine")
    dispatch = decode(attack.dispatched(OWN).data, Dispatch)
    changed = msgspec.structs.replace(dispatch.invocation, body=b'"another payload"')
    forged = encode(msgspec.structs.replace(dispatch, invocation=changed))
    await send_letter(attack, forged_letter(forged, headers=attack.dispatched_headers(OWN)))
    before = len(invoked(attack, OWN))
    await redrive_all(attack)
    assert len(invoked(attack, OWN)) == before


@under_attack
async def test_forged_letter_hides_no_true_letter(attack: MessageAttack) -> None:
    attack.plane.framework.failure_rate = attack.plane.framework.crash_rate = 1.0
    for sequence in range(1, 4):
        await send_letter(attack, forged_letter(b"{}", id=f"dispatch-{sequence}"))
    attack.start_worker(OTHER)
    await attack.invoke(OTHER, "victim")
    await asyncio.sleep(60)
    (true_letter,) = [each for each in await listed(attack) if each.invocation_id == "victim"]
    assert (await dead_letters(attack).get(true_letter.id)).invocation_id == "victim"
