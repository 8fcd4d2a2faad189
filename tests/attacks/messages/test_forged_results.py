"""A worker cannot end an invocation that was not dispatched to it, and cannot change the record of an invocation."""

import asyncio

import msgspec

from gpu_runtime.contract.messages.invocation_record import RecordAtRevision, RecordState, record_headers
from gpu_runtime.contract.messages.message_codec import encode
from gpu_runtime.contract.messages.subjects import Stream
from tests.attacks.messages.message_attack import OTHER, OWN, MessageAttack, forged_result, under_attack
from tests.unit.serverless.simulated_processes import TOPOLOGY
from tests.unit.serverless.simulated_processes import simulated_function_id as ids


@under_attack
async def test_result_for_the_invocation_of_another_function_is_not_stored(attack: MessageAttack) -> None:
    await attack.invoke(OTHER, "victim")
    await attack.publish_result(forged_result(OWN, "victim"))
    await asyncio.sleep(1)
    assert attack.record("victim").state is not RecordState.TERMINAL
    attack.start_worker(OTHER)
    await asyncio.sleep(5)
    result = attack.result("victim")
    assert result
    assert result.worker == "worker-other"


@under_attack
async def test_result_for_an_unused_invocation_id_is_not_stored(attack: MessageAttack) -> None:
    await attack.publish_result(forged_result(OWN, "later"))
    await asyncio.sleep(1)
    attack.start_worker(OTHER)
    await attack.invoke(OTHER, "later")
    await asyncio.sleep(5)
    result = attack.result("later")
    assert result
    assert result.worker == "worker-other"


@under_attack
async def test_forged_record_in_the_headers_changes_no_record(attack: MessageAttack) -> None:
    """The revision of a record is a counter, so an attacker can guess it."""
    await attack.invoke(OTHER, "victim")
    before = attack.record("victim")
    forged = msgspec.structs.replace(before, request_hash="0" * 64, reply_to="elsewhere")
    headers = record_headers(RecordAtRevision(forged, attack.revision("victim")))
    await attack.publish_result(forged_result(OWN, "victim"), headers=headers)
    await asyncio.sleep(1)
    assert attack.record("victim") == before


@under_attack
async def test_result_on_the_subject_of_another_function_is_not_stored(attack: MessageAttack) -> None:
    """An attacker that may publish on every subject has no ticket."""
    await attack.invoke(OTHER, "victim")
    await attack.publish(TOPOLOGY.subjects.result(ids(OTHER)), encode(forged_result(OTHER, "victim")))
    await asyncio.sleep(1)
    assert attack.result("victim") is None
    assert attack.record("victim").state is not RecordState.TERMINAL


@under_attack
async def test_result_with_the_ticket_of_another_invocation_is_not_stored(attack: MessageAttack) -> None:
    await attack.invoke(OTHER, "victim")
    await attack.invoke(OWN, "mine")
    headers = attack.dispatched_headers(OWN)
    await attack.publish_result(forged_result(OWN, "victim"), headers=headers)
    await attack.publish(TOPOLOGY.subjects.result(ids(OTHER)), encode(forged_result(OTHER, "victim")), headers=headers)
    await asyncio.sleep(1)
    assert attack.result("victim") is None
    assert attack.record("victim").state is not RecordState.TERMINAL


@under_attack
async def test_flood_of_forged_results_leaves_no_dead_letters(attack: MessageAttack) -> None:
    for number in range(50):
        await attack.publish_result(forged_result(OWN, f"forged-{number}"))
        await attack.publish(TOPOLOGY.subjects.result(ids(OWN)), b"not a result %d" % number)
    await asyncio.sleep(2)
    assert attack.messages(Stream.RESULT) == []
    assert attack.plane.server.streams[TOPOLOGY.dead_letter_stream.name].messages == {}
