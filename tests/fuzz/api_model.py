"""A model of the HTTP API: units, storages, stock and operations as dictionaries, with the rules of docs/api.md.

`expected_*` returns every correct status of a request, and `record_*` updates the model from the actual response. The
model returns several statuses when the correct one depends on time: the controller manager decides when the storage of
a deleted unit becomes free, and a replica sees the writes of another replica with a delay.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Request = dict[str, Any]
OK, CREATED, ACCEPTED, NO_CONTENT = 200, 201, 202, 204
INVALID, NOT_FOUND, CONFLICT, STATUS_410 = 400, 404, 409, 410
PREPARED_ONLY = {"grades": ["prepared"]}
"""The value of `stock` with which a request allows only prepared pods. The sequences create no pool."""
PROPAGATION_SECONDS = 2.0
"""Seconds after which every replica has seen a write."""


@dataclass(eq=False)
class Unit:
    name: str
    image: str
    mounts: dict[str, str]
    """Mount paths by the name of the storage."""
    running: bool = True


@dataclass
class Operation:
    request: Request
    done: bool = False
    """Whether the operation succeeded. If not, a replay may succeed later, unless the operation has failed."""
    outcome_unknown: bool = False
    """Whether the operation may have failed, for example because of a lost race for a name."""
    unit: Unit | None = None


@dataclass
class Storage:
    requested_size: int
    """The size in the create request."""
    size: int
    holder: Unit | None = None
    releasing: bool = False
    """The holder no longer mounts the storage. The storage may already be free."""
    deleting: bool = False
    """The storage is being deleted or is already deleted."""


@dataclass
class ApiModel:
    seeded: int = 0
    consumed: int = 0
    withdrawn: int = 0
    units: dict[str, Unit] = field(default_factory=dict)
    storages: dict[str, Storage] = field(default_factory=dict)
    operations: dict[str, Operation] = field(default_factory=dict)
    deleted_at: dict[str, float] = field(default_factory=dict)
    """The names of deleted units, with the time of the last deletion."""
    last_rollback_at: float = 0
    """When an operation last released its stock claim."""

    @property
    def stock(self) -> int:
        return self.seeded - self.consumed - self.withdrawn

    def expected_seed(self, request: Request) -> set[int]:
        operation = self.operations.get(request["operationID"])
        if operation is None:
            return {ACCEPTED}
        return {OK} if operation.request == request else {CONFLICT}

    def record_seed(self, request: Request, status: int) -> None:
        if status == ACCEPTED:
            self.operations[request["operationID"]] = Operation(request, done=True)
            self.seeded += int(request["replicas"])

    def expected_create(self, request: Request) -> set[int]:
        operation = self.operations.get(request["operationID"])
        if operation is None:
            return self._missing_storages(request) or self._expected_handoff(request)
        if normalized(operation.request) != normalized(request):
            return {CONFLICT}
        if operation.done:
            return self._expected_replay(operation)
        return self._expected_handoff(request) | ({CONFLICT} if operation.outcome_unknown else set())

    def record_create(self, request: Request, status: int, code: str) -> None:
        operation = self.operations.get(request["operationID"])
        if status == CREATED:
            unit = Unit(request["name"], request["image"], mount_paths(request))
            self.units[unit.name] = unit
            self.consumed += 1
            self.operations[request["operationID"]] = Operation(request, done=True, unit=unit)
            self._attach(unit)
        elif status == CONFLICT and code != "operation_reused" and not (operation and operation.done):
            # A failed operation never returns these codes.
            may_have_failed = code not in ("no_stock", "storage_in_use", "being_deleted")
            self.operations[request["operationID"]] = Operation(request, outcome_unknown=may_have_failed)
            self.last_rollback_at = time.monotonic() if may_have_failed else self.last_rollback_at

    def expected_update(self, name: str, request: Request) -> set[int]:
        unit = self.units.get(name)
        if unit is None:
            return {NOT_FOUND}
        added = [each for each in mount_paths(request) if each not in unit.mounts]
        if missing := self._expected_for_missing(added):
            return missing
        storages = [self.storages[each] for each in added]
        if any(each.holder not in (None, unit) and not each.releasing for each in storages):
            return {CONFLICT}
        return {OK, CONFLICT} if any(each.releasing for each in storages) else {OK}

    def record_update(self, name: str, request: Request, status: int) -> None:
        if status != OK:
            return
        unit = self.units[name]
        unit.image = request.get("image", unit.image)
        if "storageMounts" in request:
            mounts = mount_paths(request)
            self._detach(unit, unit.mounts.keys() - mounts.keys())
            unit.mounts = mounts
            self._attach(unit)

    def expected_for_unit(self, name: str, success: int = OK) -> set[int]:
        return {success} if name in self.units else {NOT_FOUND}

    def expected_read(self, name: str) -> set[int]:
        return self.expected_for_unit(name) | ({OK} if self._just_deleted(name) else set())

    def record_delete(self, name: str) -> None:
        if unit := self.units.pop(name, None):
            self.deleted_at[name] = time.monotonic()
            self._detach(unit, unit.mounts.keys())

    def expected_storage_create(self, name: str, size: int) -> set[int]:
        storage = self.storages.get(name)
        if storage is None:
            return {CREATED}
        if storage.deleting:
            return {CREATED, CONFLICT}
        return {OK} if storage.requested_size == size else {CONFLICT}

    def record_storage_create(self, name: str, size: int, status: int) -> None:
        if status == CREATED:
            self.storages[name] = Storage(size, size)

    def expected_storage_update(self, name: str, size: int) -> set[int]:
        storage = self.storages.get(name)
        if storage is None:
            return {NOT_FOUND}
        if storage.deleting:
            return {NOT_FOUND, CONFLICT, INVALID, OK}
        return {OK} if size >= storage.size else {INVALID}

    def record_storage_update(self, name: str, size: int, status: int) -> None:
        if status == OK:
            self.storages[name].size = size

    def expected_storage_delete(self, name: str) -> set[int]:
        storage = self.storages.get(name)
        if storage is None:
            return {NOT_FOUND}
        if storage.deleting:
            return {NO_CONTENT, NOT_FOUND}
        if storage.releasing:
            return {NO_CONTENT, CONFLICT}
        return {CONFLICT} if storage.holder else {NO_CONTENT}

    def record_storage_delete(self, name: str, status: int) -> None:
        if status == NO_CONTENT:
            storage = self.storages[name]
            storage.deleting, storage.holder, storage.releasing = True, None, False

    def expected_storage_read(self, name: str) -> set[int]:
        storage = self.storages.get(name)
        return {NOT_FOUND} if storage is None else {OK, NOT_FOUND} if storage.deleting else {OK}

    def _expected_replay(self, operation: Operation) -> set[int]:
        if operation.unit is None:
            return {OK}
        if self.units.get(operation.unit.name) is operation.unit:
            return {OK}
        return {STATUS_410, OK} if self._just_deleted(operation.unit.name) else {STATUS_410}

    def _expected_handoff(self, request: Request) -> set[int]:
        """The statuses of a create request that has not created a unit yet."""
        name = request["name"]
        storages = [self.storages.get(each) for each in mount_paths(request)]
        in_use = any(each is None or each.deleting or (each.holder and not each.releasing) for each in storages)
        if name in self.units or in_use or self.stock == 0 or request.get("stock") == PREPARED_ONLY:
            return {CONFLICT}
        depends_on_time = (
            any(each and each.releasing for each in storages) or self._just_deleted(name) or self._recently_rolled_back
        )
        return {CREATED, CONFLICT} if depends_on_time else {CREATED}

    def _missing_storages(self, request: Request) -> set[int]:
        return self._expected_for_missing(mount_paths(request))

    def _expected_for_missing(self, names: Iterable[str]) -> set[int]:
        """Empty if all storages exist. A storage that is being deleted counts as in use until it is deleted."""
        storages = [self.storages.get(name) for name in names]
        if any(each is None for each in storages):
            return {INVALID}
        return {INVALID, CONFLICT} if any(each and each.deleting for each in storages) else set()

    def _just_deleted(self, name: str) -> bool:
        return time.monotonic() - self.deleted_at.get(name, -PROPAGATION_SECONDS) < PROPAGATION_SECONDS

    @property
    def _recently_rolled_back(self) -> bool:
        return time.monotonic() - self.last_rollback_at < PROPAGATION_SECONDS

    def _attach(self, unit: Unit) -> None:
        for name in unit.mounts:
            self.storages[name].holder, self.storages[name].releasing = unit, False

    def _detach(self, unit: Unit, names: Iterable[str]) -> None:
        for name in names:
            if self.storages[name].holder is unit:
                self.storages[name].releasing = True


def normalized(request: Request) -> Request:
    """The request without whitespace around the image: the API treats both as the same request."""
    return request | {"image": request["image"].strip()}


def mount_paths(request: Request) -> dict[str, str]:
    return {mount["name"]: mount["mountPath"] for mount in request.get("storageMounts", [])}
