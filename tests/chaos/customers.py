"""Callers that have units and storages: each has its own, and the stock and a few storages are everybody's."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.callers import Caller
from tests.chaos.history import Operation, Possible, Storage, Unit
from tests.integration.runtime_api.live import Answer, seed_request, unit_request
from tests.integration.runtime_api.storages.holding import mounts

UNITS, STORAGES, SEEDINGS = "/api/v1/gpu-units", "/api/v1/gpu-storages", "/api/v1/operator/stock-units"
PORTS = {"template": {"ports": [{"name": "http", "port": 8080}]}}
MOST_UNITS, MOST_STORAGES = 4, 2


@dataclass
class Customer:
    caller: Caller
    name: str
    flavour: str
    shared: list[str]
    """Storages that others want as well. They stay."""
    units: list[Unit] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    asked: int = 0

    async def live(self, until: float) -> None:
        chance = self.caller.chance
        while time.monotonic() < until:
            acts = [self._create] * 4 + [self._seed, self._make_storage, self._again, self._misuse]
            acts += [self._delete, self._switch, self._switch, self._move, self._move] if self.units else []
            acts += [self._end_storage] if self.storages else []
            await chance.choice(acts)()
            await asyncio.sleep(chance.uniform(0.2, 1.2))

    def _next(self, kind: str) -> str:
        self.asked += 1
        return f"{self.name}-{kind}{self.asked}"

    async def _create(self) -> None:
        if len(self.units) >= MOST_UNITS:
            return await self._delete()
        wanted = self._some_storages()
        operation = Operation("", UNITS, unit_request(self.flavour, self._next("u")) | PORTS | mounts(*wanted))
        operation.id = operation.request["operationID"]
        unit = Unit(operation, mounts=Possible(frozenset(wanted)))
        self.caller.history.units[unit.name] = unit
        answer = await self.caller.operate(operation, (200, 201, 409))
        if answer.status in (200, 201):
            self.units.append(unit)
        elif answer.code not in ("no_stock", "storage_in_use"):
            self.caller.history.complaints.append(f"{operation.request} was answered {answer}")
        return None

    def _some_storages(self) -> list[str]:
        chance = self.caller.chance
        own = [each.name for each in self.storages]
        return chance.sample([*own, *self.shared], k=chance.choice((0, 0, 1, 1, 2)))

    async def _seed(self) -> None:
        name, count = self._next("s"), self.caller.chance.randint(1, 3)
        operation = Operation(name, SEEDINGS, seed_request(self.flavour, count, name))
        await self.caller.operate(operation, (200, 202))
        self.caller.history.seeded[self.flavour] += count

    async def _again(self) -> None:
        """An old request once more, whatever came of it."""
        own = [each for each in self.caller.history.operations.values() if each.id.find(self.name) >= 0]
        if own and (operation := self.caller.chance.choice(own)).succeeded:
            await self.caller.try_once(operation)

    async def _misuse(self) -> None:
        """Another request under an ID that stands for something."""
        own = [each for each in self.caller.history.operations.values() if each.succeeded and self.name in each.id]
        if own:
            operation = self.caller.chance.choice(own)
            other: dict[str, Any] = {"image": "python:3.11"} if operation.path == UNITS else {"replicas": 9}
            await self.caller.try_once(operation, **other)

    async def _delete(self) -> None:
        unit = self.units.pop(self.caller.chance.randrange(len(self.units)))
        unit.operation.deletion_asked = time.monotonic()
        await self.caller.answered("DELETE", f"{UNITS}/{unit.name}", None, (204, 404))
        unit.gone = True

    async def _switch(self) -> None:
        unit = self.caller.chance.choice(self.units)
        running = self.caller.chance.random() < 0.5
        verb = "start" if running else "stop"
        _, doubtful = await self.caller.answered("POST", f"{UNITS}/{unit.name}/{verb}", None, (200,))
        unit.running.last = running
        if doubtful:
            unit.running.doubts.add(running)

    async def _move(self) -> None:
        """Another set of storages: what it lets go, another one may want."""
        unit = self.caller.chance.choice(self.units)
        wanted = frozenset(self._some_storages())
        answer, doubtful = await self._mount(unit, wanted)
        if doubtful:
            unit.mounts.doubts.add(wanted)
        if answer.status == 200:
            unit.mounts.last = wanted

    async def _mount(self, unit: Unit, wanted: frozenset[str]) -> tuple[Answer, bool]:
        body = mounts(*sorted(wanted))
        return await self.caller.answered("PUT", f"{UNITS}/{unit.name}", body, (200, 409))

    async def _make_storage(self) -> None:
        if len(self.storages) < MOST_STORAGES:
            storage = await make_storage(self.caller, self._next("d"))
            self.storages.append(storage)

    async def _end_storage(self) -> None:
        """If it is in use, it stays."""
        storage = self.caller.chance.choice(self.storages)
        answer, doubtful = await self.caller.answered("DELETE", f"{STORAGES}/{storage.name}", None, (204, 404, 409))
        if answer.status == 409:
            storage.there.doubts |= {False} if doubtful else set()
            # Somebody may still carry out what nobody answered: nobody counts on this storage any more.
            if not doubtful:
                return
        else:
            storage.there.last = False
        self.storages.remove(storage)


async def make_storage(caller: Caller, name: str) -> Storage:
    caller.history.storages[name] = storage = Storage(name, Possible(last=True))
    _, doubtful = await caller.answered("POST", STORAGES, {"name": name, "size": "1Gi"}, (200, 201))
    storage.there.doubts |= {True} if doubtful else set()
    return storage
