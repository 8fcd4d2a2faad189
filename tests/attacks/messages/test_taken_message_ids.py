"""No worker can make the result or the dead letter of another function count as a duplicate."""

import asyncio

from gpu_runtime.contract.messages.subjects import Stream
from tests.attacks.messages.message_attack import OTHER, OWN, MessageAttack, forged_result, under_attack
from tests.unit.serverless.simulated_processes import TOPOLOGY
from tests.unit.serverless.simulated_processes import simulated_function_id as ids


@under_attack
async def test_message_id_that_an_attacker_used_first_loses_no_result(attack: MessageAttack) -> None:
    await attack.invoke(OTHER, "victim")
    for state in ("succeeded", "failed", "expired", "cancelled", "dead_lettered"):
        await attack.publish_result(forged_result(OWN, f"mine-{state}"), message_id=f"victim.{state}")
    attack.start_worker(OTHER)
    await asyncio.sleep(5)
    result = attack.result("victim")
    assert result
    assert result.worker == "worker-other"


@under_attack
async def test_message_id_that_an_attacker_used_first_loses_no_dispatch(attack: MessageAttack) -> None:
    await attack.publish(TOPOLOGY.subjects.dispatch(ids(OWN)), b"{}", message_id="victim.1")
    await attack.publish(TOPOLOGY.subjects.invoke(ids(OWN)), b"{}", message_id="victim-2")
    await attack.invoke(OTHER, "victim")
    await attack.invoke(OTHER, "victim-2")
    attack.start_worker(OTHER)
    await asyncio.sleep(5)
    assert attack.result("victim")
    assert attack.result("victim-2")


@under_attack
async def test_message_id_that_an_attacker_used_first_loses_no_dead_letter(attack: MessageAttack) -> None:
    attack.plane.framework.failure_rate = attack.plane.framework.crash_rate = 1.0
    await attack.invoke(OTHER, "victim")
    published_at, sequence = next((each.time, each.sequence) for each in attack.messages(Stream.DISPATCH))
    guess = f"dead-dispatch-{sequence}-{published_at.timestamp():.3f}"
    await attack.publish(TOPOLOGY.subjects.dead_letter(Stream.DISPATCH, ids(OWN)), b"{}", message_id=guess)
    attack.start_worker(OTHER)
    await asyncio.sleep(60)
    letters = [
        each for each in attack.stored if each.subject == TOPOLOGY.subjects.dead_letter(Stream.DISPATCH, ids(OTHER))
    ]
    assert len(letters) == 1
