"""Kubernetes' conventions on the wire."""

import logging
from collections.abc import AsyncIterator

import pytest

from gpu_runtime.kube import codec
from gpu_runtime.kube.builtin_kinds import DEPLOYMENTS, NODES, PODS, Node
from gpu_runtime.kube.codec import Bookmark, Garbled, Gone, Present
from gpu_runtime.kube.errors import Expired, Unreadable
from gpu_runtime.kube.meta import Key, ObjectMeta


def test_paths_follow_the_kinds_group_and_scope() -> None:
    assert codec.path(PODS) == "/api/v1/pods"
    assert codec.path(PODS, "ns") == "/api/v1/namespaces/ns/pods"
    assert codec.path(DEPLOYMENTS, "ns", "web", "status") == "/apis/apps/v1/namespaces/ns/deployments/web/status"
    assert codec.path(NODES, "", "one") == "/api/v1/nodes/one"
    assert codec.path(PODS, "../..", "a/b?c") == "/api/v1/namespaces/..%2F../pods/a%2Fb%3Fc", "names cannot escape"


@pytest.mark.parametrize("key", [Key("ns", ""), Key("", "pod")])
def test_a_key_that_names_no_single_object_is_refused(key: Key) -> None:
    """An empty name would make the collection's path, and a delete of it would delete everything."""
    with pytest.raises(ValueError, match="does not name one Pod"):
        codec.object_path(PODS, key)


def test_selections_become_queries() -> None:
    selection = codec.Selection("ns", labels="a=b,c in (d)", fields="spec.nodeName=n")
    assert codec.query(selection.parameters) == "?labelSelector=a%3Db%2Cc+in+%28d%29&fieldSelector=spec.nodeName%3Dn"
    assert codec.query(codec.EVERYTHING.parameters) == ""


async def test_lines_are_found_however_the_stream_is_cut() -> None:
    text = b'{"a":1}\n{"b":22}\n\n{"c":333}\n'
    for size in range(1, len(text) + 1):

        async def chunks(size: int = size) -> AsyncIterator[bytes]:
            for start in range(0, len(text), size):
                yield text[start : start + size]

        assert [line async for line in codec.lines(chunks())] == [b'{"a":1}', b'{"b":22}', b'{"c":333}']


def test_watch_events_say_what_happened() -> None:
    node = Node(metadata=ObjectMeta(name="n", resource_version="5"))
    body = b'"object":{"metadata":{"name":"n","resourceVersion":"5","managedFields":[{"manager":"x"}]},"spec":{}}}'
    assert codec.read_event(NODES, b'{"type":"ADDED",' + body) == Present(node)
    assert codec.read_event(NODES, b'{"type":"MODIFIED",' + body) == Present(node)
    assert codec.read_event(NODES, b'{"type":"DELETED",' + body) == Gone(node)
    assert codec.read_event(NODES, b'{"type":"BOOKMARK",' + body) == Bookmark("5")
    with pytest.raises(Expired, match="too old"):
        codec.read_event(
            NODES, b'{"type":"ERROR","object":{"code":410,"reason":"Expired","message":"too old resource version"}}'
        )
    with pytest.raises(Unreadable):
        codec.read_event(NODES, b"half an ev")


def test_an_object_that_does_not_fit_its_model_is_told_apart_and_hides_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bad = b'{"metadata":{"name":"bad","resourceVersion":"6"},"spec":{"unschedulable":"perhaps"}}'
    good = b'{"metadata":{"name":"good","resourceVersion":"7"}}'
    with caplog.at_level(logging.ERROR):
        event = codec.read_event(NODES, b'{"type":"MODIFIED","object":' + bad + b"}")
        page = codec.read_page(NODES, b'{"metadata":{"resourceVersion":"8"},"items":[' + bad + b"," + good + b"]}")
    assert isinstance(event, Garbled)
    assert event.object.metadata.resource_version == "6"
    assert [node.metadata.name for node in page.items] == ["good"]
    assert [found.metadata.name for found in page.unreadable] == ["bad"]
    assert [record.__dict__["object"] for record in caplog.records] == ["bad", "bad"]
    with pytest.raises(Unreadable, match="does not fit its model"):
        codec.read(NODES, bad)


def test_an_empty_list_may_be_null() -> None:
    page = codec.read_page(
        NODES, b'{"metadata":{"resourceVersion":"8","continue":"next","remainingItemCount":7},"items":null}'
    )
    assert page.remaining == 7
    assert (page.items, page.resource_version, page.continuation) == ((), "8", "next")
