"""Many callers and three replicas: every stock unit becomes exactly one unit, and everybody is told the truth."""

import asyncio
import time
from collections import Counter

from gpu_runtime.contract.crd.well_known import Annotation
from localcluster.supervisor_client import tail
from tests.integration.runtime_api.conservation import settled
from tests.integration.runtime_api.live import Answer, Caller, Platform

STOCK = 100
REQUESTS = 400


async def test_four_hundred_creates_for_a_hundred_stock_units(platform: Platform, client: Caller) -> None:
    await client.stocked({"race": STOCK})
    began = time.monotonic()
    answers = await asyncio.gather(
        *(client.create(platform.standing[number % 3], "race", f"race-{number}") for number in range(REQUESTS))
    )
    tell(f"{REQUESTS} creates for {STOCK} stock units", began, answers)
    assert Counter(answer.status for answer in answers) == {201: STOCK, 409: REQUESTS - STOCK}, explain(
        platform, answers
    )
    assert {answer.code for answer in answers if answer.status == 409} == {"no_stock"}
    await all_became_units(client, "race")


async def test_every_request_sent_to_three_replicas_at_once(platform: Platform, client: Caller) -> None:
    await client.stocked({"thrice": STOCK})
    began = time.monotonic()
    names = [f"thrice-{number}" for number in range(REQUESTS)]
    answers = await asyncio.gather(
        *(client.create(replica, "thrice", name) for name in names for replica in platform.standing)
    )
    tell(f"3 x {REQUESTS} creates for {STOCK} stock units", began, answers)
    by_operation = Counter(
        tuple(sorted(answer.status for answer in answers[first : first + 3])) for first in range(0, 3 * REQUESTS, 3)
    )
    expected = {(200, 200, 201): STOCK, (409, 409, 409): REQUESTS - STOCK}
    assert by_operation == expected, explain(platform, answers)
    await all_became_units(client, "thrice")


async def all_became_units(client: Caller, flavour: str) -> None:
    """What was answered is done, but for consumed stock that is still being deleted."""
    await settled(client, {flavour: STOCK})
    seen = await client.look()
    units = seen.units_of(flavour)
    assert not seen.stock_of(flavour)
    assert len({unit["metadata"]["annotations"][Annotation.SOURCE_STOCK_UID] for unit in units}) == len(units) == STOCK
    names = [unit["metadata"]["name"] for unit in units]
    gone = await asyncio.gather(*(client.delete(client.platform.standing[0], name) for name in names))
    assert {answer.status for answer in gone} <= {200, 202, 204}, gone


def tell(what: str, began: float, answers: list[Answer]) -> None:
    statuses = dict(Counter(answer.status for answer in answers))
    print(f"{what}: {time.monotonic() - began:.2f} s, {statuses}")


def explain(platform: Platform, answers: list[Answer]) -> str:
    others = [answer for answer in answers if answer.status not in (200, 201) and answer.code != "no_stock"]
    logs = "\n".join(tail(replica.log, 5) for replica in platform.standing)
    return f"{others[:5]}\n{logs}"
