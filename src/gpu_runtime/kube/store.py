"""What is known of the objects of one kind, found by name and by index. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from gpu_runtime.kube.meta import KubeObject, ObjectKey

T = TypeVar("T", bound=KubeObject)
IndexFunction = Callable[[T], Iterable[str]]
"""The values under which an object is found."""

OWNER_INDEX = "owner"
"""The index that every store has: by the uid of each owner."""


@dataclass(frozen=True, slots=True)
class ObjectChange(Generic[T]):
    """What was known before, and what is now; None where there was or is nothing."""

    old: T | None
    new: T | None


class Store(Generic[T]):
    def __init__(self) -> None:
        self._objects: dict[ObjectKey, T] = {}
        self._index_functions: dict[str, IndexFunction[T]] = {OWNER_INDEX: _owner_uids}
        self._indexes: dict[str, dict[str, dict[ObjectKey, T]]] = {OWNER_INDEX: defaultdict(dict)}

    def add_index(self, index: str, function: IndexFunction[T]) -> None:
        """Find objects under these values too. To be said before the first object is known."""
        if self._objects:
            raise ValueError(f"index {index!r} comes too late: objects are known already")
        self._index_functions[index] = function
        self._indexes[index] = defaultdict(dict)

    def get(self, key: ObjectKey) -> T | None:
        return self._objects.get(key)

    def all(self) -> list[T]:
        return list(self._objects.values())

    def by_index(self, index: str, value: str) -> list[T]:
        """The objects that an index has under this value, in no order."""
        found = self._indexes[index].get(value)
        return list(found.values()) if found else []

    def owned_by(self, uid: str) -> list[T]:
        return self.by_index(OWNER_INDEX, uid)

    def __len__(self) -> int:
        return len(self._objects)

    def put(self, found: T) -> ObjectChange[T] | None:
        """Take note of an object. None if this version, or a newer one of the same object, is known already."""
        before = self._objects.get(found.metadata.key)
        if before is not None and not _is_newer(found, before):
            return None
        return self._set(found, before)

    def remove(self, key: ObjectKey, uid: str | None = None) -> ObjectChange[T] | None:
        """Take note that an object is gone; with a uid, only that one: another of its name may be known already."""
        before = self._objects.get(key)
        if before is None or uid not in (None, before.metadata.uid):
            return None
        del self._objects[key]
        self._unindex(key, before)
        return ObjectChange(before, None)

    def record_write(self, written: T) -> ObjectChange[T] | None:
        """Take note of what a write returned, if its object is known: else it may be gone already."""
        known = self._objects.get(written.metadata.key)
        if known is None or known.metadata.uid != written.metadata.uid:
            return None
        return self.put(written)

    def replace(self, found: Iterable[T], keep: Iterable[ObjectKey] = ()) -> list[ObjectChange[T]]:
        """Take note of a complete list: what it does not name is gone, except what is to be kept."""
        listed = {item.metadata.key: item for item in found}
        missing = self._objects.keys() - listed.keys() - set(keep)
        changes = [self.remove(key) for key in missing]
        # A list is the whole truth, even where it is older than what was known: a cluster may come back from a backup.
        for key, item in listed.items():
            before = self._objects.get(key)
            if before is None or before.metadata.resource_version != item.metadata.resource_version:
                changes.append(self._set(item, before))
        return [change for change in changes if change is not None]

    def _set(self, found: T, before: T | None) -> ObjectChange[T]:
        key = found.metadata.key
        self._unindex(key, before)
        self._objects[key] = found
        for name, function in self._index_functions.items():
            for value in function(found):
                self._indexes[name][value][key] = found
        return ObjectChange(before, found)

    def _unindex(self, key: ObjectKey, before: T | None) -> None:
        if before is None:
            return
        for name, function in self._index_functions.items():
            index = self._indexes[name]
            for value in function(before):
                index[value].pop(key, None)
                if not index[value]:
                    del index[value]


def _owner_uids(found: KubeObject) -> Iterable[str]:
    return [owner.uid for owner in found.metadata.owner_references]


def _is_newer(found: KubeObject, known: KubeObject) -> bool:
    """Versions of one object are ordered; those of another object of the same name replace whatever was known."""
    if found.metadata.uid != known.metadata.uid:
        return True
    one, other = found.metadata.resource_version, known.metadata.resource_version
    return int(one) > int(other) if one.isdecimal() and other.isdecimal() else one != other
