"""Every accepted invocation gets one result, and only a permitted process ends it, in any order of events.

Every seed is another order of events among API replicas, activators, workers and result stores: requests that are sent
several times, cancel requests, deadlines, deleted functions, lost replies and connections, redeliveries, and processes
that are killed before or after any request to NATS.
"""

import os
import random

import pytest

from tests.unit.kube.fake_time import on_fake_time
from tests.unit.serverless.invocation_simulation import FaultPlan, InvocationSimulation

SEEDS = int(os.environ.get("INTERLEAVING_SEEDS", "300")) // 2
"""The number of seeds of each of the two tests. `INTERLEAVING_SEEDS` is their sum."""


@pytest.mark.parametrize("seed", range(SEEDS))
@on_fake_time
async def test_each_accepted_invocation_gets_one_permitted_result(seed: int) -> None:
    random.seed(seed)
    await InvocationSimulation(seed, FaultPlan()).run()


@pytest.mark.parametrize("seed", range(SEEDS))
@on_fake_time
async def test_unreadable_record_ends_no_invocation(seed: int) -> None:
    """While the record is unreadable, every process retries. After the repair, the invocation gets its result."""
    random.seed(seed)
    plan = FaultPlan(
        kills=0,
        lost_replies=2,
        disconnects=0,
        expired_records=0,
        reused_ids=0,
        unreadable_records=3,
        max_latency=0.5,
    )
    await InvocationSimulation(seed, plan).run()
