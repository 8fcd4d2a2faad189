"""An invocation or a dispatch that the API has not accepted is neither dispatched nor ended."""

import asyncio

import msgspec

from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_record import RecordAtRevision, record_headers
from gpu_runtime.contract.messages.message_codec import decode, encode
from gpu_runtime.contract.messages.subjects import Stream
from tests.attacks.messages.message_attack import OTHER, OWN, MessageAttack, under_attack
from tests.unit.serverless.simulated_processes import TOPOLOGY
from tests.unit.serverless.simulated_processes import simulated_function_id as ids


@under_attack
async def test_invocation_without_a_ticket_is_not_dispatched(attack: MessageAttack) -> None:
    forged = Invocation(invocation_id="forged", timeout_seconds=30.0, **attack.identity(OTHER))
    await attack.publish(TOPOLOGY.subjects.invoke(ids(OTHER)), encode(forged))
    await asyncio.sleep(1)
    assert [each for each in attack.stored if each.subject == TOPOLOGY.subjects.dispatch(ids(OTHER))] == []
    assert attack.messages(Stream.INVOKE) == []


@under_attack
async def test_invocation_with_the_ticket_of_another_function_is_not_dispatched(attack: MessageAttack) -> None:
    await attack.invoke(OWN, "mine")
    own = decode(attack.dispatched(OWN).data, Dispatch).invocation
    forged = msgspec.structs.replace(own, invocation_id="forged", **attack.identity(OTHER))
    await attack.publish(TOPOLOGY.subjects.invoke(ids(OTHER)), encode(forged), headers=attack.dispatched_headers(OWN))
    await asyncio.sleep(1)
    assert [each for each in attack.stored if each.subject == TOPOLOGY.subjects.dispatch(ids(OTHER))] == []


@under_attack
async def test_forged_record_in_the_headers_of_an_invocation_changes_no_record(attack: MessageAttack) -> None:
    """The activator writes the record from the headers if the invocation has no free worker."""
    await attack.invoke(OTHER, "victim")
    before = attack.record("victim")
    forged = Invocation(invocation_id="victim", timeout_seconds=30.0, **attack.identity(OWN))
    changed = msgspec.structs.replace(before, request_hash="0" * 64, state="queued")
    headers = record_headers(RecordAtRevision(changed, attack.revision("victim")))
    await attack.publish(TOPOLOGY.subjects.invoke(ids(OWN)), encode(forged), headers=headers)
    await asyncio.sleep(1)
    assert attack.record("victim") == before


@under_attack
async def test_forged_dispatch_does_not_end_the_invocation_of_another_function(attack: MessageAttack) -> None:
    """The reaper ends an invocation whose dispatch has an early deadline."""
    await attack.invoke(OTHER, "victim")
    before = attack.record("victim")
    original = decode(attack.dispatched(OTHER).data, Dispatch)
    forged = msgspec.structs.replace(
        original,
        invocation=msgspec.structs.replace(original.invocation, **attack.identity(OWN)),
        deadline=original.dispatched_at,
    )
    early = msgspec.structs.replace(before, deadline=before.enqueued_at)
    headers = record_headers(RecordAtRevision(early, attack.revision("victim")))
    await attack.publish(TOPOLOGY.subjects.dispatch(ids(OWN)), encode(forged), headers=headers)
    await asyncio.sleep(10)
    assert attack.record("victim") == before
    assert attack.result("victim") is None
