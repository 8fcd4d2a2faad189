"""Callers that have units and storages: each has its own, and the stock and a few storages are everybody's."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.request_history import Operation, PossibleValues, Storage, Unit
from tests.chaos.retrying_api_client import RetryingApiClient
from tests.integration.runtime_api.live_platform import ApiResponse, seed_request, unit_request
from tests.integration.runtime_api.storages.storage_observer import storage_mounts

UNITS_PATH, STORAGES_PATH, STOCK_UNITS_PATH = (
    "/api/v1/gpu-units",
    "/api/v1/gpu-storages",
    "/api/v1/operator/stock-units",
)
PORTS = {"template": {"ports": [{"name": "http", "port": 8080}]}}
MAX_UNITS, MAX_STORAGES = 4, 2


@dataclass
class UnitLoad:
    caller: RetryingApiClient
    name: str
    flavor: str
    shared_storages: list[str]
    """Storages that others want as well. They stay."""
    units: list[Unit] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    request_count: int = 0

    async def run(self, until: float) -> None:
        chance = self.caller.rng
        while time.monotonic() < until:
            acts = [self._create_unit] * 4 + [
                self._seed_stock,
                self._create_storage,
                self._replay_request,
                self._reuse_operation_id,
            ]
            acts += (
                [self._delete_unit, self._start_or_stop, self._start_or_stop, self._change_mounts, self._change_mounts]
                if self.units
                else []
            )
            acts += [self._delete_storage] if self.storages else []
            await chance.choice(acts)()
            await asyncio.sleep(chance.uniform(0.2, 1.2))

    def _next_name(self, kind: str) -> str:
        self.request_count += 1
        return f"{self.name}-{kind}{self.request_count}"

    async def _create_unit(self) -> None:
        if len(self.units) >= MAX_UNITS:
            return await self._delete_unit()
        wanted = self._choose_storages()
        operation = Operation(
            "", UNITS_PATH, unit_request(self.flavor, self._next_name("u")) | PORTS | storage_mounts(*wanted)
        )
        operation.id = operation.request["operationID"]
        unit = Unit(operation, mounts=PossibleValues(frozenset(wanted)))
        self.caller.history.units[unit.name] = unit
        answer = await self.caller.run_operation(operation, (200, 201, 409))
        if answer.status in (200, 201):
            self.units.append(unit)
        elif answer.code not in ("no_stock", "storage_in_use"):
            self.caller.history.violations.append(f"{operation.request} was answered {answer}")
        return None

    def _choose_storages(self) -> list[str]:
        chance = self.caller.rng
        own = [each.name for each in self.storages]
        return chance.sample([*own, *self.shared_storages], k=chance.choice((0, 0, 1, 1, 2)))

    async def _seed_stock(self) -> None:
        name, count = self._next_name("s"), self.caller.rng.randint(1, 3)
        operation = Operation(name, STOCK_UNITS_PATH, seed_request(self.flavor, count, name))
        await self.caller.run_operation(operation, (200, 202))
        self.caller.history.seeded[self.flavor] += count

    async def _replay_request(self) -> None:
        """An old request once more, whatever came of it."""
        own = [each for each in self.caller.history.operations.values() if each.id.find(self.name) >= 0]
        if own and (operation := self.caller.rng.choice(own)).succeeded:
            await self.caller.send_operation(operation)

    async def _reuse_operation_id(self) -> None:
        """Another request under an ID that stands for something."""
        own = [each for each in self.caller.history.operations.values() if each.succeeded and self.name in each.id]
        if own:
            operation = self.caller.rng.choice(own)
            other: dict[str, Any] = {"image": "python:3.11"} if operation.path == UNITS_PATH else {"replicas": 9}
            await self.caller.send_operation(operation, **other)

    async def _delete_unit(self) -> None:
        unit = self.units.pop(self.caller.rng.randrange(len(self.units)))
        unit.operation.deletion_requested_at = time.monotonic()
        await self.caller.request("DELETE", f"{UNITS_PATH}/{unit.name}", None, (204, 404))
        unit.deleted = True

    async def _start_or_stop(self) -> None:
        unit = self.caller.rng.choice(self.units)
        running = self.caller.rng.random() < 0.5
        verb = "start" if running else "stop"
        _, doubtful = await self.caller.request("POST", f"{UNITS_PATH}/{unit.name}/{verb}", None, (200,))
        unit.running.latest = running
        if doubtful:
            unit.running.unconfirmed.add(running)

    async def _change_mounts(self) -> None:
        """Another set of storages: what it lets go, another one may want."""
        unit = self.caller.rng.choice(self.units)
        wanted = frozenset(self._choose_storages())
        answer, doubtful = await self._update_mounts(unit, wanted)
        if doubtful:
            unit.mounts.unconfirmed.add(wanted)
        if answer.status == 200:
            unit.mounts.latest = wanted

    async def _update_mounts(self, unit: Unit, wanted: frozenset[str]) -> tuple[ApiResponse, bool]:
        body = storage_mounts(*sorted(wanted))
        return await self.caller.request("PUT", f"{UNITS_PATH}/{unit.name}", body, (200, 409))

    async def _create_storage(self) -> None:
        if len(self.storages) < MAX_STORAGES:
            storage = await create_storage(self.caller, self._next_name("d"))
            self.storages.append(storage)

    async def _delete_storage(self) -> None:
        """If it is in use, it stays."""
        storage = self.caller.rng.choice(self.storages)
        answer, doubtful = await self.caller.request("DELETE", f"{STORAGES_PATH}/{storage.name}", None, (204, 404, 409))
        if answer.status == 409:
            storage.exists.unconfirmed |= {False} if doubtful else set()
            # Somebody may still carry out what nobody answered: nobody counts on this storage any more.
            if not doubtful:
                return
        else:
            storage.exists.latest = False
        self.storages.remove(storage)


async def create_storage(caller: RetryingApiClient, name: str) -> Storage:
    caller.history.storages[name] = storage = Storage(name, PossibleValues(latest=True))
    _, doubtful = await caller.request("POST", STORAGES_PATH, {"name": name, "size": "1Gi"}, (200, 201))
    storage.exists.unconfirmed |= {True} if doubtful else set()
    return storage
