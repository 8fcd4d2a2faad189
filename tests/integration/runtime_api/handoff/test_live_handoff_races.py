"""Many callers and three replicas: every stock unit becomes exactly one unit, and everybody is told the truth."""

import asyncio
import time
from collections import Counter

from gpu_runtime.contract.crd.well_known import Annotation
from localcluster.supervisor_client import tail_log
from tests.integration.runtime_api.live_platform import ApiCaller, ApiResponse, LivePlatform
from tests.integration.runtime_api.stock_conservation import wait_conserved

STOCK_COUNT = 100
REQUEST_COUNT = 400


async def test_400_creates_for_100_stock_units(platform: LivePlatform, api_client: ApiCaller) -> None:
    await api_client.seed_and_wait({"race": STOCK_COUNT})
    began = time.monotonic()
    answers = await asyncio.gather(
        *(
            api_client.create_unit(platform.shared_replicas[number % 3], "race", f"race-{number}")
            for number in range(REQUEST_COUNT)
        )
    )
    print_rate(f"{REQUEST_COUNT} creates for {STOCK_COUNT} stock units", began, answers)
    assert Counter(answer.status for answer in answers) == {201: STOCK_COUNT, 409: REQUEST_COUNT - STOCK_COUNT}, (
        describe_failures(platform, answers)
    )
    assert {answer.code for answer in answers if answer.status == 409} == {"no_stock"}
    await assert_all_stock_consumed(api_client, "race")


async def test_every_request_sent_to_three_replicas_concurrently(platform: LivePlatform, api_client: ApiCaller) -> None:
    await api_client.seed_and_wait({"thrice": STOCK_COUNT})
    began = time.monotonic()
    names = [f"thrice-{number}" for number in range(REQUEST_COUNT)]
    answers = await asyncio.gather(
        *(api_client.create_unit(replica, "thrice", name) for name in names for replica in platform.shared_replicas)
    )
    print_rate(f"3 x {REQUEST_COUNT} creates for {STOCK_COUNT} stock units", began, answers)
    by_operation = Counter(
        tuple(sorted(answer.status for answer in answers[first : first + 3]))
        for first in range(0, 3 * REQUEST_COUNT, 3)
    )
    expected = {(200, 200, 201): STOCK_COUNT, (409, 409, 409): REQUEST_COUNT - STOCK_COUNT}
    assert by_operation == expected, describe_failures(platform, answers)
    await assert_all_stock_consumed(api_client, "thrice")


async def assert_all_stock_consumed(client: ApiCaller, flavor: str) -> None:
    """What was answered is done, but for consumed stock that is still being deleted."""
    await wait_conserved(client, {flavor: STOCK_COUNT})
    seen = await client.snapshot()
    units = seen.units_of(flavor)
    assert not seen.stock_of(flavor)
    assert (
        len({unit["metadata"]["annotations"][Annotation.SOURCE_STOCK_UID] for unit in units})
        == len(units)
        == STOCK_COUNT
    )
    names = [unit["metadata"]["name"] for unit in units]
    gone = await asyncio.gather(*(client.delete_unit(client.platform.shared_replicas[0], name) for name in names))
    assert {answer.status for answer in gone} <= {200, 202, 204}, gone


def print_rate(what: str, began: float, answers: list[ApiResponse]) -> None:
    statuses = dict(Counter(answer.status for answer in answers))
    print(f"{what}: {time.monotonic() - began:.2f} s, {statuses}")


def describe_failures(platform: LivePlatform, answers: list[ApiResponse]) -> str:
    others = [answer for answer in answers if answer.status not in (200, 201) and answer.code != "no_stock"]
    logs = "\n".join(tail_log(replica.log, 5) for replica in platform.shared_replicas)
    return f"{others[:5]}\n{logs}"
