"""Several callers, three replicas that are killed and started again at random, and then the truth."""

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field

from tests.integration.runtime_api.live_platform import (
    ApiCaller,
    ApiResponse,
    ClusterSnapshot,
    LiveApiProcess,
    LivePlatform,
    operation_state,
    recorded_request,
)
from tests.integration.runtime_api.stock_conservation import wait_conserved

LOAD_SECONDS = 15
CALLERS = 6
FLAVOR = "storm"
INITIAL_STOCK_COUNT, RESEED_COUNT = 60, 10
"""How much stock there is in the beginning, and how much each seeding adds meanwhile."""


@dataclass
class RandomLoad:
    client: ApiCaller
    rng: random.Random
    requested_names: list[str] = field(default_factory=list)
    """Names of units that somebody asked for."""
    deleted: set[str] = field(default_factory=set)
    """Names of units whose deletion somebody asked for, with whatever answer."""
    seedings: list[str] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    kills: int = 0

    async def run(self) -> None:
        until = time.monotonic() + LOAD_SECONDS
        async with asyncio.TaskGroup() as tasks:
            for _ in range(CALLERS):
                tasks.create_task(self._send_requests(until))
            tasks.create_task(self._kill_replicas(until))

    async def _send_requests(self, until: float) -> None:
        while time.monotonic() < until:
            replica = self.rng.choice(self.client.platform.shared_replicas)
            match self.rng.random():
                case chance if chance < 0.5 or not self.requested_names:
                    self.requested_names.append(f"storm-{len(self.requested_names)}")
                    self._count_response(
                        "create", await self.client.create_unit(replica, FLAVOR, self.requested_names[-1])
                    )
                case chance if chance < 0.75:
                    again = self.rng.choice(self.requested_names)
                    self._count_response("again", await self.client.create_unit(replica, FLAVOR, again))
                case chance if chance < 0.95:
                    self.deleted.add(name := self.rng.choice(self.requested_names))
                    self._count_response("delete", await self.client.delete_unit(replica, name))
                case _:
                    self.seedings.append(f"storm-seed-{len(self.seedings)}")
                    self._count_response(
                        "seed", await self.client.seed_stock(replica, FLAVOR, RESEED_COUNT, self.seedings[-1])
                    )
            await asyncio.sleep(self.rng.uniform(0, 0.2))

    async def _kill_replicas(self, until: float) -> None:
        """One at a time, and never the last one that answers."""
        up = list(self.client.platform.shared_replicas)
        async with asyncio.TaskGroup() as starting:
            while time.monotonic() < until:
                await asyncio.sleep(self.rng.uniform(0.2, 1.5))
                if len(up) > 1:
                    up.remove(replica := self.rng.choice(up))
                    replica.kill()
                    self.kills += 1
                    starting.create_task(self._start(replica, up))

    async def _start(self, replica: LiveApiProcess, up: list[LiveApiProcess]) -> None:
        await self.client.start_replicas(replica)
        up.append(replica)

    def _count_response(self, what: str, answer: ApiResponse) -> None:
        self.answers[f"{what} {answer.status or 'unanswered'}"] += 1
        assert answer.status in (0, 200, 201, 202, 204, 404, 409, 410, 503), answer


async def test_random_requests_and_kills_conserve_stock(platform: LivePlatform, api_client: ApiCaller) -> None:
    await api_client.seed_and_wait({FLAVOR: INITIAL_STOCK_COUNT})
    storm = RandomLoad(api_client, random.Random(7))  # noqa: S311 - the same storm every time, as far as that goes
    await storm.run()
    print(f"{storm.kills} kills, {dict(storm.answers)}")
    await asyncio.gather(*(api_client.wait_ready(replica) for replica in platform.shared_replicas))
    # Until the sweep has finished the seedings that are recorded, their stock is not counted.
    print(
        f"in order within {await wait_conserved(api_client, {FLAVOR: await seeded_count(api_client)}, storm.deleted):.1f} s"
    )
    seen = await api_client.snapshot()
    assert all(operation_state(each) == "Succeeded" for each in seen.operations_of("SeedStock", FLAVOR))
    await assert_replays_match(api_client, storm, seen)
    await wait_conserved(api_client, {FLAVOR: await seeded_count(api_client)}, storm.deleted)


async def seeded_count(client: ApiCaller) -> int:
    seen = await client.snapshot()
    return sum(int(recorded_request(each)["replicas"]) for each in seen.operations_of("SeedStock", FLAVOR))


async def assert_replays_match(client: ApiCaller, storm: RandomLoad, seen: ClusterSnapshot) -> None:
    there = {unit["metadata"]["name"] for unit in seen.units_of(FLAVOR)}
    states = {name: operation_state(seen.operations.get(f"make-{name}", {})) for name in storm.requested_names}
    await client.wait_stock_visible(client.platform.shared_replicas[0], {FLAVOR: len(seen.stock_of(FLAVOR))})
    answers = {
        name: await client.create_unit(client.platform.shared_replicas[0], FLAVOR, name)
        for name in storm.requested_names
    }
    ended = {name for name, state in states.items() if state == "Succeeded"}
    assert {answers[name].status for name in ended & there} <= {200}
    assert {answers[name].status for name in ended - there} <= {410}
    rest = Counter(answers[name].status for name in states.keys() - ended)
    possible = min(len(seen.stock_of(FLAVOR)), len(states.keys() - ended))
    assert rest == Counter({201: possible, 409: rest.total() - possible}), rest
    print(f"replays: {dict(Counter(answer.status for answer in answers.values()))}")
