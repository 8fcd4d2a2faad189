"""A cache answers by name and by index, and is never older than what it was told."""

import pytest

from gpu_runtime.kube.meta import Key, Object, ObjectMeta, OwnerReference
from gpu_runtime.kube.store import Change, Store


def thing(name: str, version: int = 1, uid: str = "", owner: str = "", **labels: str) -> Object:
    owners = (OwnerReference(api_version="v1", kind="Owner", name=owner, uid=f"uid-{owner}"),) if owner else ()
    return Object(
        metadata=ObjectMeta(
            namespace="ns",
            name=name,
            uid=uid or f"uid-{name}",
            resource_version=str(version),
            owner_references=owners,
            labels=labels,
        )
    )


def names(found: list[Object]) -> list[str]:
    return sorted(item.metadata.name for item in found)


def colours() -> Store[Object]:
    store: Store[Object] = Store()
    store.index_by("colour", lambda item: [item.metadata.labels["colour"]] if "colour" in item.metadata.labels else [])
    return store


def test_objects_are_found_by_name_owner_and_index() -> None:
    store = colours()
    store.put(thing("a", owner="x", colour="red"))
    store.put(thing("b", owner="x", colour="blue"))
    store.put(thing("c"))
    assert names(store.owned_by("uid-x")) == ["a", "b"]
    assert names(store.by("colour", "red")) == ["a"]
    assert store.by("colour", "green") == []
    assert store.get(Key("ns", "c")) == thing("c")
    assert store.get(Key("other", "c")) is None
    assert len(store) == 3


def test_a_changed_object_moves_in_the_indexes() -> None:
    store = colours()
    before, after = thing("a", 1, colour="red"), thing("a", 2, colour="blue")
    store.put(before)
    assert store.put(after) == Change(before, after)
    assert store.by("colour", "red") == []
    assert names(store.by("colour", "blue")) == ["a"]
    assert store.remove(Key("ns", "a")) == Change(after, None)
    assert store.by("colour", "blue") == []
    assert store.remove(Key("ns", "a")) is None


def test_older_versions_of_an_object_do_not_replace_newer_ones() -> None:
    store: Store[Object] = Store()
    store.put(thing("a", 10))
    assert store.put(thing("a", 9)) is None
    assert store.put(thing("a", 10)) is None
    assert store.put(thing("a", 9, uid="another")) is not None, "an object made anew replaces the one before it"


def test_a_write_is_learned_only_of_an_object_that_is_known() -> None:
    store: Store[Object] = Store()
    assert store.learn(thing("a", 2)) is None, "the watch may already have told that it is gone"
    store.put(thing("a", 1))
    assert store.learn(thing("a", 2, uid="another")) is None
    assert store.learn(thing("a", 2)) == Change(thing("a", 1), thing("a", 2))
    assert store.put(thing("a", 2)) is None, "the watch's own news of the write are no news"


def test_a_list_is_the_whole_truth() -> None:
    store: Store[Object] = Store()
    for item in (thing("same"), thing("changed", 1), thing("gone"), thing("unreadable"), thing("older", 9)):
        store.put(item)
    listed = [thing("same"), thing("changed", 2), thing("new"), thing("older", 3)]
    changes = store.replace(listed, keep=[Key("ns", "unreadable")])
    assert {(c.before and c.before.metadata.name, c.after and c.after.metadata.name) for c in changes} == {
        ("changed", "changed"),
        ("gone", None),
        (None, "new"),
        ("older", "older"),
    }
    assert names(store.all()) == ["changed", "new", "older", "same", "unreadable"]


def test_an_index_cannot_be_added_too_late() -> None:
    store: Store[Object] = Store()
    store.put(thing("a"))
    with pytest.raises(ValueError, match="too late"):
        store.index_by("late", lambda _: [])
