"""Several callers, three replicas that are killed and started again at random, and then the truth."""

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field

from tests.integration.runtime_api.conservation import settled
from tests.integration.runtime_api.live import Answer, Caller, LiveReplica, Platform, Seen, request_of, state_of

SECONDS = 15
CALLERS = 6
FLAVOUR = "storm"
FIRST, MORE = 60, 10
"""How much stock there is in the beginning, and how much each seeding adds meanwhile."""


@dataclass
class Storm:
    client: Caller
    chance: random.Random
    asked: list[str] = field(default_factory=list)
    """Names of units that somebody asked for."""
    deleted: set[str] = field(default_factory=set)
    """Names of units whose deletion somebody asked for, with whatever answer."""
    seedings: list[str] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    kills: int = 0

    async def blow(self) -> None:
        until = time.monotonic() + SECONDS
        async with asyncio.TaskGroup() as tasks:
            for _ in range(CALLERS):
                tasks.create_task(self._call(until))
            tasks.create_task(self._kill(until))

    async def _call(self, until: float) -> None:
        while time.monotonic() < until:
            replica = self.chance.choice(self.client.platform.standing)
            match self.chance.random():
                case chance if chance < 0.5 or not self.asked:
                    self.asked.append(f"storm-{len(self.asked)}")
                    self._note("create", await self.client.create(replica, FLAVOUR, self.asked[-1]))
                case chance if chance < 0.75:
                    again = self.chance.choice(self.asked)
                    self._note("again", await self.client.create(replica, FLAVOUR, again))
                case chance if chance < 0.95:
                    self.deleted.add(name := self.chance.choice(self.asked))
                    self._note("delete", await self.client.delete(replica, name))
                case _:
                    self.seedings.append(f"storm-seed-{len(self.seedings)}")
                    self._note("seed", await self.client.seed(replica, FLAVOUR, MORE, self.seedings[-1]))
            await asyncio.sleep(self.chance.uniform(0, 0.2))

    async def _kill(self, until: float) -> None:
        """One at a time, and never the last one that answers."""
        up = list(self.client.platform.standing)
        async with asyncio.TaskGroup() as starting:
            while time.monotonic() < until:
                await asyncio.sleep(self.chance.uniform(0.2, 1.5))
                if len(up) > 1:
                    up.remove(replica := self.chance.choice(up))
                    replica.kill()
                    self.kills += 1
                    starting.create_task(self._start(replica, up))

    async def _start(self, replica: LiveReplica, up: list[LiveReplica]) -> None:
        await self.client.started(replica)
        up.append(replica)

    def _note(self, what: str, answer: Answer) -> None:
        self.answers[f"{what} {answer.status or 'unanswered'}"] += 1
        assert answer.status in (0, 200, 201, 202, 204, 404, 409, 410, 503), answer


async def test_a_storm_of_calls_and_kills(platform: Platform, client: Caller) -> None:
    await client.stocked({FLAVOUR: FIRST})
    storm = Storm(client, random.Random(7))  # noqa: S311 - the same storm every time, as far as that goes
    await storm.blow()
    print(f"{storm.kills} kills, {dict(storm.answers)}")
    await asyncio.gather(*(client.ready(replica) for replica in platform.standing))
    # Until the sweep has finished the seedings that are recorded, their stock is not counted.
    print(f"in order within {await settled(client, {FLAVOUR: await seeded(client)}, storm.deleted):.1f} s")
    seen = await client.look()
    assert all(state_of(each) == "Succeeded" for each in seen.operations_of("SeedStock", FLAVOUR))
    await every_request_gets_its_answer(client, storm, seen)
    await settled(client, {FLAVOUR: await seeded(client)}, storm.deleted)


async def seeded(client: Caller) -> int:
    seen = await client.look()
    return sum(int(request_of(each)["replicas"]) for each in seen.operations_of("SeedStock", FLAVOUR))


async def every_request_gets_its_answer(client: Caller, storm: Storm, seen: Seen) -> None:
    there = {unit["metadata"]["name"] for unit in seen.units_of(FLAVOUR)}
    states = {name: state_of(seen.operations.get(f"make-{name}", {})) for name in storm.asked}
    await client.sees(client.platform.standing[0], {FLAVOUR: len(seen.stock_of(FLAVOUR))})
    answers = {name: await client.create(client.platform.standing[0], FLAVOUR, name) for name in storm.asked}
    ended = {name for name, state in states.items() if state == "Succeeded"}
    assert {answers[name].status for name in ended & there} <= {200}
    assert {answers[name].status for name in ended - there} <= {410}
    rest = Counter(answers[name].status for name in states.keys() - ended)
    possible = min(len(seen.stock_of(FLAVOUR)), len(states.keys() - ended))
    assert rest == Counter({201: possible, 409: rest.total() - possible}), rest
    print(f"replays: {dict(Counter(answer.status for answer in answers.values()))}")
