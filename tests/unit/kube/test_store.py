"""A cache answers by name and by index, and is never older than what it was told."""

import pytest

from gpu_runtime.kube.meta import KubeObject, ObjectKey, ObjectMeta, OwnerReference
from gpu_runtime.kube.store import ObjectChange, Store


def make_object(name: str, version: int = 1, uid: str = "", owner: str = "", **labels: str) -> KubeObject:
    owners = (OwnerReference(api_version="v1", kind="Owner", name=owner, uid=f"uid-{owner}"),) if owner else ()
    return KubeObject(
        metadata=ObjectMeta(
            namespace="ns",
            name=name,
            uid=uid or f"uid-{name}",
            resource_version=str(version),
            owner_references=owners,
            labels=labels,
        )
    )


def names(found: list[KubeObject]) -> list[str]:
    return sorted(item.metadata.name for item in found)


def color_indexed_store() -> Store[KubeObject]:
    store: Store[KubeObject] = Store()
    store.add_index("colour", lambda item: [item.metadata.labels["colour"]] if "colour" in item.metadata.labels else [])
    return store


def test_objects_are_found_by_name_owner_and_index() -> None:
    store = color_indexed_store()
    store.put(make_object("a", owner="x", colour="red"))
    store.put(make_object("b", owner="x", colour="blue"))
    store.put(make_object("c"))
    assert names(store.owned_by("uid-x")) == ["a", "b"]
    assert names(store.by_index("colour", "red")) == ["a"]
    assert store.by_index("colour", "green") == []
    assert store.get(ObjectKey("ns", "c")) == make_object("c")
    assert store.get(ObjectKey("other", "c")) is None
    assert len(store) == 3


def test_a_changed_object_moves_in_the_indexes() -> None:
    store = color_indexed_store()
    before, after = make_object("a", 1, colour="red"), make_object("a", 2, colour="blue")
    store.put(before)
    assert store.put(after) == ObjectChange(before, after)
    assert store.by_index("colour", "red") == []
    assert names(store.by_index("colour", "blue")) == ["a"]
    assert store.remove(ObjectKey("ns", "a")) == ObjectChange(after, None)
    assert store.by_index("colour", "blue") == []
    assert store.remove(ObjectKey("ns", "a")) is None


def test_older_versions_of_an_object_do_not_replace_newer_ones() -> None:
    store: Store[KubeObject] = Store()
    store.put(make_object("a", 10))
    assert store.put(make_object("a", 9)) is None
    assert store.put(make_object("a", 10)) is None
    assert store.put(make_object("a", 9, uid="another")) is not None, "an object made anew replaces the one before it"


def test_recorded_write_applies_only_to_a_cached_object() -> None:
    store: Store[KubeObject] = Store()
    assert store.record_write(make_object("a", 2)) is None, "the watch may already have told that it is gone"
    store.put(make_object("a", 1))
    assert store.record_write(make_object("a", 2, uid="another")) is None
    assert store.record_write(make_object("a", 2)) == ObjectChange(make_object("a", 1), make_object("a", 2))
    assert store.put(make_object("a", 2)) is None, "the watch's own news of the write are no news"


def test_replace_removes_objects_that_are_not_listed() -> None:
    store: Store[KubeObject] = Store()
    for item in (
        make_object("same"),
        make_object("changed", 1),
        make_object("gone"),
        make_object("unreadable"),
        make_object("older", 9),
    ):
        store.put(item)
    listed = [make_object("same"), make_object("changed", 2), make_object("new"), make_object("older", 3)]
    changes = store.replace(listed, keep=[ObjectKey("ns", "unreadable")])
    assert {(c.old and c.old.metadata.name, c.new and c.new.metadata.name) for c in changes} == {
        ("changed", "changed"),
        ("gone", None),
        (None, "new"),
        ("older", "older"),
    }
    assert names(store.all()) == ["changed", "new", "older", "same", "unreadable"]


def test_an_index_cannot_be_added_too_late() -> None:
    store: Store[KubeObject] = Store()
    store.put(make_object("a"))
    with pytest.raises(ValueError, match="too late"):
        store.add_index("late", lambda _: [])
