"""Generates load on units and storages. Each load has its own units and storages. All loads share the stock and a few
storages.

About half of the create requests fit the prepared pods of the pool. The others differ from them, for example in the
mounted storages, so they use stock units.
"""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.request_history import Operation, PossibleValues, Storage, Unit, Withdrawal
from tests.chaos.retrying_api_client import RetryingApiClient
from tests.integration.controller_manager.conftest import Object
from tests.integration.runtime_api.live_platform import ApiResponse, seed_request, unit_request
from tests.integration.runtime_api.storages.storage_observer import storage_mounts

UNITS_PATH, STORAGES_PATH, STOCK_UNITS_PATH = (
    "/api/v1/gpu-units",
    "/api/v1/gpu-storages",
    "/api/v1/operator/stock-units",
)
PREPARED_IMAGE = "python:3.12"
PORTS = {"ports": [{"name": "http", "port": 8080}]}
PREPARED_TEMPLATE = PORTS | {"command": ["serve"]}
"""The image and the template of the prepared pods."""
FITTING_SHARE = 0.5
"""The share of create requests that prepared pods fit."""
MAX_UNITS, MAX_STORAGES = 4, 2


@dataclass
class UnitLoad:
    caller: RetryingApiClient
    name: str
    flavor: str
    shared_storages: list[str]
    """Storages that all loads mount. No load deletes them."""
    units: list[Unit] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    request_count: int = 0

    async def run(self, until: float) -> None:
        rng = self.caller.rng
        while time.monotonic() < until:
            actions = [self._create_unit] * 4 + [
                self._seed_stock,
                self._seed_stock,
                self._withdraw_stock,
                self._create_storage,
                self._replay_request,
                self._reuse_operation_id,
            ]
            actions += (
                [self._delete_unit, self._start_or_stop, self._start_or_stop, self._change_mounts, self._change_mounts]
                if self.units
                else []
            )
            actions += [self._delete_storage] if self.storages else []
            await rng.choice(actions)()
            await asyncio.sleep(rng.uniform(0.2, 1.2))

    def _next_name(self, kind: str) -> str:
        self.request_count += 1
        return f"{self.name}-{kind}{self.request_count}"

    async def _create_unit(self) -> None:
        if len(self.units) >= MAX_UNITS:
            return await self._delete_unit()
        request = unit_request(self.flavor, self._next_name("u")) | self._choose_program()
        operation = Operation(request["operationID"], UNITS_PATH, request)
        unit = Unit(operation, mounts=PossibleValues(frozenset(each["name"] for each in request["storageMounts"])))
        self.caller.history.units[unit.name] = unit
        response = await self.caller.run_operation(operation, (200, 201, 409))
        if response.status in (200, 201):
            self.units.append(unit)
        elif response.code not in ("no_stock", "storage_in_use", "being_deleted"):
            self.caller.history.violations.append(f"{operation.request} had the response {response}")
        return None

    def _choose_program(self) -> Object:
        """Return the fields that decide which grade of stock the unit can use."""
        rng = self.caller.rng
        if rng.random() < FITTING_SHARE:
            grades: Object = rng.choice(
                ({}, {}, {"stock": {"grades": ["prepared"]}}, {"stock": {"grades": ["reserved"]}})
            )
            return {"image": PREPARED_IMAGE, "template": PREPARED_TEMPLATE, **storage_mounts()} | grades
        image, template = rng.choice((PREPARED_IMAGE, "python:3.10")), rng.choice((PORTS, PREPARED_TEMPLATE))
        return {"image": image, "template": template, **storage_mounts(*self._choose_storages())}

    def _choose_storages(self) -> list[str]:
        rng = self.caller.rng
        own = [each.name for each in self.storages]
        return rng.sample([*own, *self.shared_storages], k=rng.choice((0, 0, 1, 1, 2)))

    async def _seed_stock(self) -> None:
        name, count = self._next_name("s"), self.caller.rng.randint(1, 3)
        operation = Operation(name, STOCK_UNITS_PATH, seed_request(self.flavor, count, name))
        await self.caller.run_operation(operation, (200, 202))
        self.caller.history.seeded[self.flavor] += count

    async def _withdraw_stock(self) -> None:
        """Withdraw any stock unit, as an operator does. It may be claimed, or may become a unit at the same time."""
        listed, _ = await self.caller.request("GET", f"{STOCK_UNITS_PATH}?specName={self.flavor}", None, (200,))
        if not (names := [each["name"] for each in listed.body["data"]]):
            return
        name, history = self.caller.rng.choice(names), self.caller.history
        path = f"{STOCK_UNITS_PATH}/{name}"
        withdrawal = history.withdrawals.setdefault(name, Withdrawal(self.flavor))
        response, uncertain = await self.caller.request("DELETE", path, None, (204, 404, 409))
        withdrawal.confirmed |= response.status == 204
        withdrawal.uncertain |= uncertain
        if response.status == 409 and response.code not in ("stock_claimed", "write_conflict"):
            history.violations.append(f"DELETE {path} had the response {response}")

    async def _replay_request(self) -> None:
        """Send an earlier successful request again."""
        own = [each for each in self.caller.history.operations.values() if each.id.find(self.name) >= 0]
        if own and (operation := self.caller.rng.choice(own)).succeeded:
            await self.caller.send_operation(operation)

    async def _reuse_operation_id(self) -> None:
        """Send a changed request with an operationID that was used before."""
        own = [each for each in self.caller.history.operations.values() if each.succeeded and self.name in each.id]
        if own:
            operation = self.caller.rng.choice(own)
            changes: dict[str, Any] = {"image": "python:3.11"} if operation.path == UNITS_PATH else {"replicas": 9}
            await self.caller.send_operation(operation, **changes)

    async def _delete_unit(self) -> None:
        unit = self.units.pop(self.caller.rng.randrange(len(self.units)))
        unit.operation.deletion_requested_at = time.monotonic()
        await self.caller.request("DELETE", f"{UNITS_PATH}/{unit.name}", None, (204, 404))
        unit.deleted = True

    async def _start_or_stop(self) -> None:
        unit = self.caller.rng.choice(self.units)
        running = self.caller.rng.random() < 0.5
        verb = "start" if running else "stop"
        unit.pod_may_end |= not running
        _, uncertain = await self.caller.request("POST", f"{UNITS_PATH}/{unit.name}/{verb}", None, (200,))
        unit.running.latest = running
        if uncertain:
            unit.running.unconfirmed.add(running)

    async def _change_mounts(self) -> None:
        """Mount another set of storages. Another load may mount the storages that the unit releases."""
        unit = self.caller.rng.choice(self.units)
        storages = frozenset(self._choose_storages())
        unit.pod_may_end = True
        response, uncertain = await self._update_mounts(unit, storages)
        if uncertain:
            unit.mounts.unconfirmed.add(storages)
        if response.status == 200:
            unit.mounts.latest = storages

    async def _update_mounts(self, unit: Unit, storages: frozenset[str]) -> tuple[ApiResponse, bool]:
        body = storage_mounts(*sorted(storages))
        return await self.caller.request("PUT", f"{UNITS_PATH}/{unit.name}", body, (200, 409))

    async def _create_storage(self) -> None:
        if len(self.storages) < MAX_STORAGES:
            storage = await create_storage(self.caller, self._next_name("d"))
            self.storages.append(storage)

    async def _delete_storage(self) -> None:
        """Delete a storage. The API rejects the deletion with 409 if the storage is in use."""
        storage = self.caller.rng.choice(self.storages)
        path = f"{STORAGES_PATH}/{storage.name}"
        response, uncertain = await self.caller.request("DELETE", path, None, (204, 404, 409))
        if response.status == 409:
            storage.exists.unconfirmed |= {False} if uncertain else set()
            # The API may still apply an earlier attempt that had no response. The load then stops using this storage.
            if not uncertain:
                return
        else:
            storage.exists.latest = False
        self.storages.remove(storage)


async def create_storage(caller: RetryingApiClient, name: str) -> Storage:
    caller.history.storages[name] = storage = Storage(name, PossibleValues(latest=True))
    _, uncertain = await caller.request("POST", STORAGES_PATH, {"name": name, "size": "1Gi"}, (200, 201))
    storage.exists.unconfirmed |= {True} if uncertain else set()
    return storage
