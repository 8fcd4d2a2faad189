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
INVALID, MISSING, CONFLICT, GONE = 400, 404, 409, 410
MOMENT = 2.0
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
    doubtful: bool = False
    unit: Unit | None = None


@dataclass
class Storage:
    asked: int
    """The size in the request that made it."""
    size: int
    holder: Unit | None = None
    releasing: bool = False
    """Its holder has let go of it, and it may be free already."""
    deleting: bool = False
    """It goes, or has gone already."""


@dataclass
class Model:
    seeded: int = 0
    consumed: int = 0
    units: dict[str, Unit] = field(default_factory=dict)
    storages: dict[str, Storage] = field(default_factory=dict)
    operations: dict[str, Operation] = field(default_factory=dict)
    deleted: dict[str, float] = field(default_factory=dict)
    """Names of units that were deleted, and when the last one of that name was."""
    disturbed: float = 0
    """When an operation last gave its stock back."""

    @property
    def stock(self) -> int:
        return self.seeded - self.consumed

    def seeding(self, request: Request) -> set[int]:
        known = self.operations.get(request["operationID"])
        if known is None:
            return {ACCEPTED}
        return {OK} if known.request == request else {CONFLICT}

    def seeded_by(self, request: Request, status: int) -> None:
        if status == ACCEPTED:
            self.operations[request["operationID"]] = Operation(request, done=True)
            self.seeded += int(request["replicas"])

    def creating(self, request: Request) -> set[int]:
        known = self.operations.get(request["operationID"])
        if known is None:
            return self._missing(request) or self._possible(request)
        if meant(known.request) != meant(request):
            return {CONFLICT}
        if known.done:
            return self._replayed(known)
        return self._possible(request) | ({CONFLICT} if known.doubtful else set())

    def created_by(self, request: Request, status: int, code: str) -> None:
        known = self.operations.get(request["operationID"])
        if status == CREATED:
            unit = Unit(request["name"], request["image"], mounts_of(request))
            self.units[unit.name] = unit
            self.consumed += 1
            self.operations[request["operationID"]] = Operation(request, done=True, unit=unit)
            self._hold(unit)
        elif status == CONFLICT and code != "operation_reused" and not (known and known.done):
            # What has failed for good never answers with these codes again.
            doubtful = code not in ("no_stock", "storage_in_use")
            self.operations[request["operationID"]] = Operation(request, doubtful=doubtful)
            self.disturbed = time.monotonic() if doubtful else self.disturbed

    def updating(self, name: str, request: Request) -> set[int]:
        unit = self.units.get(name)
        if unit is None:
            return {MISSING}
        gained = [each for each in mounts_of(request) if each not in unit.mounts]
        if missing := self._missing_of(gained):
            return missing
        held = [self.storages[each] for each in gained]
        if any(each.holder not in (None, unit) and not each.releasing for each in held):
            return {CONFLICT}
        return {OK, CONFLICT} if any(each.releasing for each in held) else {OK}

    def updated_by(self, name: str, request: Request, status: int) -> None:
        if status != OK:
            return
        unit = self.units[name]
        unit.image = request.get("image", unit.image)
        if "storageMounts" in request:
            kept = mounts_of(request)
            self._release(unit, unit.mounts.keys() - kept.keys())
            unit.mounts = kept
            self._hold(unit)

    def of_unit(self, name: str, good: int = OK) -> set[int]:
        return {good} if name in self.units else {MISSING}

    def reading(self, name: str) -> set[int]:
        return self.of_unit(name) | ({OK} if self._just_deleted(name) else set())

    def deleted_unit(self, name: str) -> None:
        if unit := self.units.pop(name, None):
            self.deleted[name] = time.monotonic()
            self._release(unit, unit.mounts.keys())

    def making(self, name: str, size: int) -> set[int]:
        known = self.storages.get(name)
        if known is None:
            return {CREATED}
        if known.deleting:
            return {CREATED, CONFLICT}
        return {OK} if known.asked == size else {CONFLICT}

    def made(self, name: str, size: int, status: int) -> None:
        if status == CREATED:
            self.storages[name] = Storage(size, size)

    def growing(self, name: str, size: int) -> set[int]:
        known = self.storages.get(name)
        if known is None:
            return {MISSING}
        if known.deleting:
            return {MISSING, CONFLICT, INVALID, OK}
        return {OK} if size >= known.size else {INVALID}

    def grown(self, name: str, size: int, status: int) -> None:
        if status == OK:
            self.storages[name].size = size

    def ending(self, name: str) -> set[int]:
        known = self.storages.get(name)
        if known is None:
            return {MISSING}
        if known.deleting:
            return {NO_CONTENT, MISSING}
        if known.releasing:
            return {NO_CONTENT, CONFLICT}
        return {CONFLICT} if known.holder else {NO_CONTENT}

    def ended(self, name: str, status: int) -> None:
        if status == NO_CONTENT:
            known = self.storages[name]
            known.deleting, known.holder, known.releasing = True, None, False

    def reading_storage(self, name: str) -> set[int]:
        known = self.storages.get(name)
        return {MISSING} if known is None else {OK, MISSING} if known.deleting else {OK}

    def _replayed(self, known: Operation) -> set[int]:
        if known.unit is None:
            return {OK}
        if self.units.get(known.unit.name) is known.unit:
            return {OK}
        return {GONE, OK} if self._just_deleted(known.unit.name) else {GONE}

    def _possible(self, request: Request) -> set[int]:
        """Of a create that has not made anything yet."""
        name = request["name"]
        wanted = [self.storages.get(each) for each in mounts_of(request)]
        held = any(each is None or each.deleting or (each.holder and not each.releasing) for each in wanted)
        if name in self.units or held or self.stock == 0:
            return {CONFLICT}
        unsure = any(each and each.releasing for each in wanted) or self._just_deleted(name) or self._is_disturbed
        return {CREATED, CONFLICT} if unsure else {CREATED}

    def _missing(self, request: Request) -> set[int]:
        return self._missing_of(mounts_of(request))

    def _missing_of(self, names: Iterable[str]) -> set[int]:
        """Nothing where all of them are there. A storage that goes is in use until it has gone."""
        known = [self.storages.get(name) for name in names]
        if any(each is None for each in known):
            return {INVALID}
        return {INVALID, CONFLICT} if any(each and each.deleting for each in known) else set()

    def _just_deleted(self, name: str) -> bool:
        return time.monotonic() - self.deleted.get(name, -MOMENT) < MOMENT

    @property
    def _is_disturbed(self) -> bool:
        return time.monotonic() - self.disturbed < MOMENT

    def _hold(self, unit: Unit) -> None:
        for name in unit.mounts:
            self.storages[name].holder, self.storages[name].releasing = unit, False

    def _release(self, unit: Unit, names: Iterable[str]) -> None:
        for name in names:
            if self.storages[name].holder is unit:
                self.storages[name].releasing = True


def meant(request: Request) -> Request:
    """What is the same request is so in spite of blanks around its image."""
    return request | {"image": request["image"].strip()}


def mounts_of(request: Request) -> dict[str, str]:
    return {mount["name"]: mount["mountPath"] for mount in request.get("storageMounts", [])}
