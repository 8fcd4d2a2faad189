"""Concurrent create requests on three replicas.

Every stock unit becomes exactly one unit, and every caller receives the correct status.
"""

import asyncio
import time
from collections import Counter

from gpu_runtime.contract.crd.well_known import Annotation
from localcluster.supervisor_client import tail_log
from tests.integration.runtime_api.live_platform import ApiCaller, ApiResponse, LivePlatform
from tests.integration.runtime_api.stock_conservation import wait_conserved

STOCK_COUNT = 100
REQUEST_COUNT = 400


async def test_concurrent_creates_consume_every_stock_unit_once(platform: LivePlatform, api_client: ApiCaller) -> None:
    await api_client.seed_and_wait({"race": STOCK_COUNT})
    started = time.monotonic()
    responses = await asyncio.gather(
        *(
            api_client.create_unit(platform.shared_replicas[number % 3], "race", f"race-{number}")
            for number in range(REQUEST_COUNT)
        )
    )
    print_rate(f"{REQUEST_COUNT} creates for {STOCK_COUNT} stock units", started, responses)
    assert Counter(response.status for response in responses) == {201: STOCK_COUNT, 409: REQUEST_COUNT - STOCK_COUNT}, (
        describe_failures(platform, responses)
    )
    assert {response.code for response in responses if response.status == 409} == {"no_stock"}
    await assert_all_stock_consumed(api_client, "race")


async def test_same_create_sent_to_three_replicas_concurrently_creates_one_unit(
    platform: LivePlatform, api_client: ApiCaller
) -> None:
    await api_client.seed_and_wait({"triple": STOCK_COUNT})
    started = time.monotonic()
    names = [f"triple-{number}" for number in range(REQUEST_COUNT)]
    responses = await asyncio.gather(
        *(api_client.create_unit(replica, "triple", name) for name in names for replica in platform.shared_replicas)
    )
    print_rate(f"3 x {REQUEST_COUNT} creates for {STOCK_COUNT} stock units", started, responses)
    statuses_by_operation = Counter(
        tuple(sorted(response.status for response in responses[first : first + 3]))
        for first in range(0, 3 * REQUEST_COUNT, 3)
    )
    expected = {(200, 200, 201): STOCK_COUNT, (409, 409, 409): REQUEST_COUNT - STOCK_COUNT}
    assert statuses_by_operation == expected, describe_failures(platform, responses)
    await assert_all_stock_consumed(api_client, "triple")


async def assert_all_stock_consumed(client: ApiCaller, flavor: str) -> None:
    """Assert that every stock unit became exactly one unit, and delete the units.

    A replica deletes consumed stock units in the background after the response, so this function waits.
    """
    await wait_conserved(client, {flavor: STOCK_COUNT})
    snapshot = await client.snapshot()
    units = snapshot.units_of(flavor)
    assert not snapshot.stock_of(flavor)
    assert (
        len({unit["metadata"]["annotations"][Annotation.SOURCE_STOCK_UID] for unit in units})
        == len(units)
        == STOCK_COUNT
    )
    names = [unit["metadata"]["name"] for unit in units]
    deletions = await asyncio.gather(*(client.delete_unit(client.platform.shared_replicas[0], name) for name in names))
    assert {response.status for response in deletions} <= {200, 202, 204}, deletions


def print_rate(description: str, started: float, responses: list[ApiResponse]) -> None:
    statuses = dict(Counter(response.status for response in responses))
    print(f"{description}: {time.monotonic() - started:.2f} s, {statuses}")


def describe_failures(platform: LivePlatform, responses: list[ApiResponse]) -> str:
    failures = [each for each in responses if each.status not in (200, 201) and each.code != "no_stock"]
    logs = "\n".join(tail_log(replica.log, 5) for replica in platform.shared_replicas)
    return f"{failures[:5]}\n{logs}"
