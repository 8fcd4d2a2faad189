"""What the API must answer: units, storages, stock and operations, as a few dictionaries and the rules of docs/api.md.

The model knows what it cannot know. When a storage is free again whose unit is gone, the controller manager decides;
and a replica hears of what another one did a moment later. There it gives every status that is right, and learns from
the answer which one it was.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Request = dict[str, Any]
OK, CREATED, ACCEPTED, NO_CONTENT = 200, 201, 202, 204
INVALID, NOT_FOUND, CONFLICT, STATUS_410 = 400, 404, 409, 410
PROPAGATION_SECONDS = 2.0
"""Seconds after which every replica has heard of everything."""


@dataclass(eq=False)
class Unit:
    name: str
    image: str
    mounts: dict[str, str]
    """Paths by storage."""
    running: bool = True


@dataclass
class Operation:
    request: Request
    done: bool = False
    """Else the same request may succeed later, unless it has failed for good: a lost race for a name ends so."""
    outcome_unknown: bool = False
    unit: Unit | None = None


@dataclass
class Storage:
    requested_size: int
    """The size in the request that made it."""
    size: int
    holder: Unit | None = None
    releasing: bool = False
    """Its holder has let go of it, and it may be free already."""
    deleting: bool = False
    """It goes, or has gone already."""


@dataclass
class ApiModel:
    seeded: int = 0
    consumed: int = 0
    units: dict[str, Unit] = field(default_factory=dict)
    storages: dict[str, Storage] = field(default_factory=dict)
    operations: dict[str, Operation] = field(default_factory=dict)
    deleted_at: dict[str, float] = field(default_factory=dict)
    """Names of units that were deleted, and when the last one of that name was."""
    last_rollback_at: float = 0
    """When an operation last gave its stock back."""

    @property
    def stock(self) -> int:
        return self.seeded - self.consumed

    def expected_seed(self, request: Request) -> set[int]:
        known = self.operations.get(request["operationID"])
        if known is None:
            return {ACCEPTED}
        return {OK} if known.request == request else {CONFLICT}

    def record_seed(self, request: Request, status: int) -> None:
        if status == ACCEPTED:
            self.operations[request["operationID"]] = Operation(request, done=True)
            self.seeded += int(request["replicas"])

    def expected_create(self, request: Request) -> set[int]:
        known = self.operations.get(request["operationID"])
        if known is None:
            return self._missing_storages(request) or self._expected_handoff(request)
        if normalized(known.request) != normalized(request):
            return {CONFLICT}
        if known.done:
            return self._replayed(known)
        return self._expected_handoff(request) | ({CONFLICT} if known.outcome_unknown else set())

    def record_create(self, request: Request, status: int, code: str) -> None:
        known = self.operations.get(request["operationID"])
        if status == CREATED:
            unit = Unit(request["name"], request["image"], mount_paths(request))
            self.units[unit.name] = unit
            self.consumed += 1
            self.operations[request["operationID"]] = Operation(request, done=True, unit=unit)
            self._attach(unit)
        elif status == CONFLICT and code != "operation_reused" and not (known and known.done):
            # What has failed for good never answers with these codes again.
            doubtful = code not in ("no_stock", "storage_in_use")
            self.operations[request["operationID"]] = Operation(request, outcome_unknown=doubtful)
            self.last_rollback_at = time.monotonic() if doubtful else self.last_rollback_at

    def expected_update(self, name: str, request: Request) -> set[int]:
        unit = self.units.get(name)
        if unit is None:
            return {NOT_FOUND}
        gained = [each for each in mount_paths(request) if each not in unit.mounts]
        if missing := self._expected_for_missing(gained):
            return missing
        held = [self.storages[each] for each in gained]
        if any(each.holder not in (None, unit) and not each.releasing for each in held):
            return {CONFLICT}
        return {OK, CONFLICT} if any(each.releasing for each in held) else {OK}

    def record_update(self, name: str, request: Request, status: int) -> None:
        if status != OK:
            return
        unit = self.units[name]
        unit.image = request.get("image", unit.image)
        if "storageMounts" in request:
            kept = mount_paths(request)
            self._detach(unit, unit.mounts.keys() - kept.keys())
            unit.mounts = kept
            self._attach(unit)

    def expected_for_unit(self, name: str, good: int = OK) -> set[int]:
        return {good} if name in self.units else {NOT_FOUND}

    def expected_read(self, name: str) -> set[int]:
        return self.expected_for_unit(name) | ({OK} if self._just_deleted(name) else set())

    def record_delete(self, name: str) -> None:
        if unit := self.units.pop(name, None):
            self.deleted_at[name] = time.monotonic()
            self._detach(unit, unit.mounts.keys())

    def expected_storage_create(self, name: str, size: int) -> set[int]:
        known = self.storages.get(name)
        if known is None:
            return {CREATED}
        if known.deleting:
            return {CREATED, CONFLICT}
        return {OK} if known.requested_size == size else {CONFLICT}

    def record_storage_create(self, name: str, size: int, status: int) -> None:
        if status == CREATED:
            self.storages[name] = Storage(size, size)

    def expected_storage_update(self, name: str, size: int) -> set[int]:
        known = self.storages.get(name)
        if known is None:
            return {NOT_FOUND}
        if known.deleting:
            return {NOT_FOUND, CONFLICT, INVALID, OK}
        return {OK} if size >= known.size else {INVALID}

    def record_storage_update(self, name: str, size: int, status: int) -> None:
        if status == OK:
            self.storages[name].size = size

    def expected_storage_delete(self, name: str) -> set[int]:
        known = self.storages.get(name)
        if known is None:
            return {NOT_FOUND}
        if known.deleting:
            return {NO_CONTENT, NOT_FOUND}
        if known.releasing:
            return {NO_CONTENT, CONFLICT}
        return {CONFLICT} if known.holder else {NO_CONTENT}

    def record_storage_delete(self, name: str, status: int) -> None:
        if status == NO_CONTENT:
            known = self.storages[name]
            known.deleting, known.holder, known.releasing = True, None, False

    def expected_storage_read(self, name: str) -> set[int]:
        known = self.storages.get(name)
        return {NOT_FOUND} if known is None else {OK, NOT_FOUND} if known.deleting else {OK}

    def _replayed(self, known: Operation) -> set[int]:
        if known.unit is None:
            return {OK}
        if self.units.get(known.unit.name) is known.unit:
            return {OK}
        return {STATUS_410, OK} if self._just_deleted(known.unit.name) else {STATUS_410}

    def _expected_handoff(self, request: Request) -> set[int]:
        """Of a create that has not made anything yet."""
        name = request["name"]
        wanted = [self.storages.get(each) for each in mount_paths(request)]
        held = any(each is None or each.deleting or (each.holder and not each.releasing) for each in wanted)
        if name in self.units or held or self.stock == 0:
            return {CONFLICT}
        unsure = (
            any(each and each.releasing for each in wanted) or self._just_deleted(name) or self._recently_rolled_back
        )
        return {CREATED, CONFLICT} if unsure else {CREATED}

    def _missing_storages(self, request: Request) -> set[int]:
        return self._expected_for_missing(mount_paths(request))

    def _expected_for_missing(self, names: Iterable[str]) -> set[int]:
        """Nothing where all of them are there. A storage that goes is in use until it has gone."""
        known = [self.storages.get(name) for name in names]
        if any(each is None for each in known):
            return {INVALID}
        return {INVALID, CONFLICT} if any(each and each.deleting for each in known) else set()

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
    """What is the same request is so in spite of blanks around its image."""
    return request | {"image": request["image"].strip()}


def mount_paths(request: Request) -> dict[str, str]:
    return {mount["name"]: mount["mountPath"] for mount in request.get("storageMounts", [])}
