"""The caller of a synchronous invocation gets only the result of this invocation."""

import asyncio

import msgspec
import pytest
from nats.aio.msg import Msg

from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.message_codec import decode, encode
from tests.attacks.messages.message_attack import (
    OTHER,
    OWN,
    MessageAttack,
    forged_result,
    message_attack,
    request,
    under_attack,
)
from tests.unit.kube.fake_time import on_fake_time
from tests.unit.serverless.simulated_processes import TOPOLOGY
from tests.unit.serverless.simulated_processes import simulated_function_id as ids


@under_attack
async def test_reply_to_a_guessed_subject_reaches_no_caller(attack: MessageAttack) -> None:
    """The attacker knows the reply subject of its own invocation, and guesses that of the next one."""
    own_caller = asyncio.create_task(attack.service.invoke(request(OWN, "mine", "sync")))
    await asyncio.sleep(1)
    own_subject = decode(attack.dispatched(OWN).data, Dispatch).invocation.reply_to
    caller = asyncio.create_task(attack.service.invoke(request(OTHER, "victim", "sync")))
    await asyncio.sleep(0.5)
    prefix, _, number = own_subject.rpartition(".")
    for step in range(1, 5):
        guess = f"{prefix}.{int(number, 16) + step:x}"
        await attack.attacker.publish(guess, encode(forged_result(OTHER, "victim")))
    await asyncio.sleep(0.5)
    attack.start_worker(OTHER)
    view, _ = await caller
    assert view.worker == "worker-other"
    own_caller.cancel()


@under_attack
async def test_reply_with_the_result_of_another_invocation_is_ignored(attack: MessageAttack) -> None:
    """The attacker has learned the reply subject of the other function."""
    caller = asyncio.create_task(attack.service.invoke(request(OTHER, "victim", "sync")))
    await asyncio.sleep(1)
    subject = decode(attack.dispatched(OTHER).data, Dispatch).invocation.reply_to
    for result in (forged_result(OTHER, "victim"), forged_result(OWN, "victim"), forged_result(OWN, "mine")):
        await attack.attacker.publish(subject, encode(result))
    await attack.attacker.publish(subject, b"not a result")
    await asyncio.sleep(1)
    attack.start_worker(OTHER)
    view, _ = await caller
    assert view.worker == "worker-other"


@under_attack
async def test_reply_with_the_ticket_of_another_invocation_is_ignored(attack: MessageAttack) -> None:
    await attack.invoke(OWN, "mine")
    caller = asyncio.create_task(attack.service.invoke(request(OTHER, "victim", "sync")))
    await asyncio.sleep(1)
    subject = decode(attack.dispatched(OTHER).data, Dispatch).invocation.reply_to
    headers = attack.dispatched_headers(OWN)
    for result in (forged_result(OWN, "mine"), forged_result(OTHER, "victim")):
        await attack.attacker.publish(subject, encode(result), headers=headers)
    await asyncio.sleep(1)
    attack.start_worker(OTHER)
    view, _ = await caller
    assert view.worker == "worker-other"


TARGETS = (
    "$JS.API.STREAM.PURGE.RUNTIME_SERVERLESS_DISPATCH",
    TOPOLOGY.subjects.result(ids(OTHER)),
    TOPOLOGY.subjects.cancel(ids(OTHER)),
    TOPOLOGY.subjects.reply(ids(OTHER), "a" * 32, "b" * 32),
    "_INBOX.abc.1",
)


@pytest.mark.parametrize("target", TARGETS)
@on_fake_time
async def test_reply_subject_of_another_form_or_function_is_not_used(target: str) -> None:
    """A forged dispatch names the subject on which the worker publishes the result."""
    async with message_attack() as attack:
        received: list[Msg] = []
        await attack.invoke(OWN, "mine")
        original = attack.dispatched(OWN)
        dispatch = decode(original.data, Dispatch)
        changed = msgspec.structs.replace(dispatch.invocation, invocation_id="second", reply_to=target)
        forged = encode(msgspec.structs.replace(dispatch, invocation=changed))
        async with attack.attacker.subscribed(target, received.append):
            await attack.publish(original.subject, forged, headers=attack.dispatched_headers(OWN))
            attack.start_worker(OWN)
            await asyncio.sleep(5)
        assert received == []
