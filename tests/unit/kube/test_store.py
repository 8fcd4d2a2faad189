"""The store finds objects by key and by index, and never replaces an object with an older version."""

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


def names(objects: list[KubeObject]) -> list[str]:
    return sorted(item.metadata.name for item in objects)


def color_indexed_store() -> Store[KubeObject]:
    store: Store[KubeObject] = Store()
    store.add_index("color", lambda item: [item.metadata.labels["color"]] if "color" in item.metadata.labels else [])
    return store


def test_objects_are_found_by_name_owner_and_index() -> None:
    store = color_indexed_store()
    store.put(make_object("a", owner="x", color="red"))
    store.put(make_object("b", owner="x", color="blue"))
    store.put(make_object("c"))
    assert names(store.owned_by("uid-x")) == ["a", "b"]
    assert names(store.by_index("color", "red")) == ["a"]
    assert store.by_index("color", "green") == []
    assert store.get(ObjectKey("ns", "c")) == make_object("c")
    assert store.get(ObjectKey("other", "c")) is None
    assert len(store) == 3


def test_changed_object_is_indexed_by_its_new_values() -> None:
    store = color_indexed_store()
    before, after = make_object("a", 1, color="red"), make_object("a", 2, color="blue")
    store.put(before)
    assert store.put(after) == ObjectChange(before, after)
    assert store.by_index("color", "red") == []
    assert names(store.by_index("color", "blue")) == ["a"]
    assert store.remove(ObjectKey("ns", "a")) == ObjectChange(after, None)
    assert store.by_index("color", "blue") == []
    assert store.remove(ObjectKey("ns", "a")) is None


def test_older_versions_of_an_object_do_not_replace_newer_ones() -> None:
    store: Store[KubeObject] = Store()
    store.put(make_object("a", 10))
    assert store.put(make_object("a", 9)) is None
    assert store.put(make_object("a", 10)) is None
    assert store.put(make_object("a", 9, uid="another")) is not None, (
        "an object with another UID replaces the stored one"
    )


def test_recorded_write_applies_only_to_a_cached_object() -> None:
    store: Store[KubeObject] = Store()
    assert store.record_write(make_object("a", 2)) is None, "the object may already be deleted"
    store.put(make_object("a", 1))
    assert store.record_write(make_object("a", 2, uid="another")) is None
    assert store.record_write(make_object("a", 2)) == ObjectChange(make_object("a", 1), make_object("a", 2))
    assert store.put(make_object("a", 2)) is None, "the watch delivers the same version again"


def test_replace_removes_objects_that_are_not_listed() -> None:
    store: Store[KubeObject] = Store()
    for item in (
        make_object("same"),
        make_object("changed", 1),
        make_object("deleted"),
        make_object("undecodable"),
        make_object("older", 9),
    ):
        store.put(item)
    listed = [make_object("same"), make_object("changed", 2), make_object("new"), make_object("older", 3)]
    changes = store.replace(listed, keep=[ObjectKey("ns", "undecodable")])
    assert {(c.old and c.old.metadata.name, c.new and c.new.metadata.name) for c in changes} == {
        ("changed", "changed"),
        ("deleted", None),
        (None, "new"),
        ("older", "older"),
    }
    assert names(store.all()) == ["changed", "new", "older", "same", "undecodable"]


def test_index_cannot_be_added_to_a_store_with_objects() -> None:
    store: Store[KubeObject] = Store()
    store.put(make_object("a"))
    with pytest.raises(ValueError, match="cannot add index 'late': the store already contains objects"):
        store.add_index("late", lambda _: [])
