"""Paths, list options, list pages and watch events of the Kubernetes API are encoded and decoded."""

import logging
from collections.abc import AsyncIterator

import pytest

from gpu_runtime.kube import codec
from gpu_runtime.kube.builtin_kinds import PODS
from gpu_runtime.kube.codec import Bookmark, ObjectApplied, ObjectDecodeFailed, ObjectDeleted
from gpu_runtime.kube.errors import KubeDecodeError, KubeResourceExpired
from gpu_runtime.kube.meta import ObjectKey, ObjectMeta
from tests.kube_kinds import DEPLOYMENTS, NODES, Node


def test_path_depends_on_the_group_and_the_scope_of_the_kind() -> None:
    assert codec.resource_path(PODS) == "/api/v1/pods"
    assert codec.resource_path(PODS, "ns") == "/api/v1/namespaces/ns/pods"
    assert (
        codec.resource_path(DEPLOYMENTS, "ns", "web", "status") == "/apis/apps/v1/namespaces/ns/deployments/web/status"
    )
    assert codec.resource_path(NODES, "", "one") == "/api/v1/nodes/one"
    assert codec.resource_path(PODS, "../..", "a/b?c") == "/api/v1/namespaces/..%2F../pods/a%2Fb%3Fc", (
        "a name cannot change the path"
    )


@pytest.mark.parametrize("key", [ObjectKey("ns", ""), ObjectKey("", "pod")])
def test_key_without_an_object_name_is_rejected(key: ObjectKey) -> None:
    """An empty name would result in the path of the collection, and a delete of that path deletes every object."""
    with pytest.raises(ValueError, match="does not identify one Pod"):
        codec.object_path(PODS, key)


def test_list_options_become_query_parameters() -> None:
    list_options = codec.ListOptions("ns", label_selector="a=b,c in (d)", field_selector="spec.nodeName=n")
    assert (
        codec.query_string(list_options.query_parameters)
        == "?labelSelector=a%3Db%2Cc+in+%28d%29&fieldSelector=spec.nodeName%3Dn"
    )
    assert codec.query_string(codec.ALL_OBJECTS.query_parameters) == ""


async def test_watch_lines_are_split_for_any_chunking() -> None:
    text = b'{"a":1}\n{"b":22}\n\n{"c":333}\n'
    for size in range(1, len(text) + 1):

        async def chunks(size: int = size) -> AsyncIterator[bytes]:
            for start in range(0, len(text), size):
                yield text[start : start + size]

        assert [line async for line in codec.split_lines(chunks())] == [b'{"a":1}', b'{"b":22}', b'{"c":333}']


def test_watch_events_are_decoded_by_type() -> None:
    node = Node(metadata=ObjectMeta(name="n", resource_version="5"))
    body = b'"object":{"metadata":{"name":"n","resourceVersion":"5","managedFields":[{"manager":"x"}]},"spec":{}}}'
    assert codec.decode_watch_event(NODES, b'{"type":"ADDED",' + body) == ObjectApplied(node)
    assert codec.decode_watch_event(NODES, b'{"type":"MODIFIED",' + body) == ObjectApplied(node)
    assert codec.decode_watch_event(NODES, b'{"type":"DELETED",' + body) == ObjectDeleted(node)
    assert codec.decode_watch_event(NODES, b'{"type":"BOOKMARK",' + body) == Bookmark("5")
    with pytest.raises(KubeResourceExpired, match="too old"):
        codec.decode_watch_event(
            NODES, b'{"type":"ERROR","object":{"code":410,"reason":"Expired","message":"too old resource version"}}'
        )
    with pytest.raises(KubeDecodeError):
        codec.decode_watch_event(NODES, b"half an ev")


def test_undecodable_object_is_reported_and_does_not_hide_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bad = b'{"metadata":{"name":"bad","resourceVersion":"6"},"spec":{"unschedulable":"perhaps"}}'
    good = b'{"metadata":{"name":"good","resourceVersion":"7"}}'
    with caplog.at_level(logging.ERROR):
        event = codec.decode_watch_event(NODES, b'{"type":"MODIFIED","object":' + bad + b"}")
        page = codec.decode_list_page(
            NODES, b'{"metadata":{"resourceVersion":"8"},"items":[' + bad + b"," + good + b"]}"
        )
    assert isinstance(event, ObjectDecodeFailed)
    assert event.object.metadata.resource_version == "6"
    assert [node.metadata.name for node in page.items] == ["good"]
    assert [item.metadata.name for item in page.undecodable] == ["bad"]
    assert [(record.message, record.__dict__["object_name"]) for record in caplog.records] == [
        ("object decoding failed; the process ignores this change of the object", "bad"),
        ("object decoding failed; the process ignores this change of the object", "bad"),
    ]
    with pytest.raises(KubeDecodeError, match="does not match its model"):
        codec.decode_object(NODES, bad)


def test_null_items_are_an_empty_list() -> None:

    page = codec.decode_list_page(
        NODES, b'{"metadata":{"resourceVersion":"8","continue":"next","remainingItemCount":7},"items":null}'
    )
    assert page.remaining_item_count == 7
    assert (page.items, page.resource_version, page.continue_token) == ((), "8", "next")
