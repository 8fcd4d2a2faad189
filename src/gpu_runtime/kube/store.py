"""The cache of the objects of one kind, with lookup by key and by index. Pure: it makes no requests."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from gpu_runtime.kube.meta import KubeObject, ObjectKey

T = TypeVar("T", bound=KubeObject)
IndexFunction = Callable[[T], Iterable[str]]
"""Returns the index values of an object."""

OWNER_INDEX = "owner"
"""The index by the UID of each owner. Every store has it."""


@dataclass(frozen=True, slots=True)
class ObjectChange(Generic[T]):
    """The cached state of an object before and after a change.

    `old` is None if the object was not cached before. `new` is None if the object is no longer cached.
    """

    old: T | None
    new: T | None


class Store(Generic[T]):
    def __init__(self) -> None:
        self._objects: dict[ObjectKey, T] = {}
        self._index_functions: dict[str, IndexFunction[T]] = {
            OWNER_INDEX: lambda owned: [owner.uid for owner in owned.metadata.owner_references]
        }
        self._indexes: dict[str, dict[str, dict[ObjectKey, T]]] = {OWNER_INDEX: defaultdict(dict)}

    def add_index(self, index: str, function: IndexFunction[T]) -> None:
        """Add an index. Call it before the store contains the first object."""
        if self._objects:
            raise ValueError(f"cannot add index {index!r}: the store already contains objects; add indexes first")
        self._index_functions[index] = function
        self._indexes[index] = defaultdict(dict)

    def get(self, key: ObjectKey) -> T | None:
        return self._objects.get(key)

    def all(self) -> list[T]:
        return list(self._objects.values())

    def by_index(self, index: str, value: str) -> list[T]:
        """Return the objects with this index value, in no particular order."""
        objects = self._indexes[index].get(value)
        return list(objects.values()) if objects else []

    def owned_by(self, uid: str) -> list[T]:
        return self.by_index(OWNER_INDEX, uid)

    def __len__(self) -> int:
        return len(self._objects)

    def put(self, new: T) -> ObjectChange[T] | None:
        """Store an object. Return None if the store already has this version of the object or a newer version."""
        old = self._objects.get(new.metadata.key)
        if old is not None and not _is_newer(new, old):
            return None
        return self._set(new, old)

    def remove(self, key: ObjectKey, uid: str | None = None) -> ObjectChange[T] | None:
        """Remove an object that was deleted.

        If a UID is given, remove only the object with that UID: the store may already have a new object with the same
        name.
        """
        old = self._objects.get(key)
        if old is None or uid not in (None, old.metadata.uid):
            return None
        del self._objects[key]
        self._unindex(key, old)
        return ObjectChange(old, None)

    def record_write(self, written: T) -> ObjectChange[T] | None:
        """Store the object that a write returned, if the store already has the object.

        Otherwise do nothing: the object may already be deleted.
        """
        old = self._objects.get(written.metadata.key)
        if old is None or old.metadata.uid != written.metadata.uid:
            return None
        return self.put(written)

    def replace(self, items: Iterable[T], keep: Iterable[ObjectKey] = ()) -> list[ObjectChange[T]]:
        """Replace the content with a complete list. Remove every object that is neither listed nor in `keep`."""
        listed = {item.metadata.key: item for item in items}
        missing = self._objects.keys() - listed.keys() - set(keep)
        changes = [self.remove(key) for key in missing]
        # A listed object replaces the stored one even if the listed version is older: the cluster may have been
        # restored from a backup.
        for key, item in listed.items():
            old = self._objects.get(key)
            if old is None or old.metadata.resource_version != item.metadata.resource_version:
                changes.append(self._set(item, old))
        return [change for change in changes if change is not None]

    def _set(self, new: T, old: T | None) -> ObjectChange[T]:
        key = new.metadata.key
        self._unindex(key, old)
        self._objects[key] = new
        for name, function in self._index_functions.items():
            for value in function(new):
                self._indexes[name][value][key] = new
        return ObjectChange(old, new)

    def _unindex(self, key: ObjectKey, old: T | None) -> None:
        if old is None:
            return
        for name, function in self._index_functions.items():
            index = self._indexes[name]
            for value in function(old):
                index[value].pop(key, None)
                if not index[value]:
                    del index[value]


def _is_newer(new: KubeObject, old: KubeObject) -> bool:
    """Return whether an object replaces the stored object with the same name.

    The resource versions of one object are ordered. An object with another UID always replaces the stored object.
    """
    if new.metadata.uid != old.metadata.uid:
        return True
    version, stored = new.metadata.resource_version, old.metadata.resource_version
    return int(version) > int(stored) if version.isdecimal() and stored.isdecimal() else version != stored
