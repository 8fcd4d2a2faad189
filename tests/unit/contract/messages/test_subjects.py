"""Subjects are built from one token each, and taken apart into the same."""

import pytest

from gpu_runtime.contract.errors import Rejected
from gpu_runtime.contract.messages.streams import Topology
from gpu_runtime.contract.messages.subjects import Address, Queue, Subjects

DEFAULT = Subjects()


def test_the_subjects_are_as_documented() -> None:
    assert DEFAULT.invoke("f") == "runtime.serverless.invoke.f"
    assert DEFAULT.dispatch("f") == "runtime.serverless.dispatch.f"
    assert DEFAULT.result("f") == "runtime.serverless.result.f"
    assert DEFAULT.dead_letter(Queue.INVOKE, "f") == "runtime.serverless.dlq.invoke.f"
    assert DEFAULT.events("f") == "runtime.serverless.events.f"
    assert Subjects("mine").query("result") == "mine.query.result"


@pytest.mark.parametrize("prefix", ["runtime.serverless", "x", "a-b.c_d.E"])
def test_what_was_built_is_taken_apart_again(prefix: str) -> None:
    subjects = Subjects(prefix)
    assert subjects.parse(subjects.invoke("a-b_1")) == Address("invoke", "a-b_1")
    assert subjects.parse(subjects.result("f")) == Address("result", "f")
    assert subjects.parse(subjects.events("f")) == Address("events", "f")
    assert subjects.parse(subjects.dead_letter(Queue.RESULT, "f")) == Address("dlq", "f", Queue.RESULT)


@pytest.mark.parametrize("bad", ["", "a.b", "A", "*", ">", "a b", "a\n", "ä"])
def test_what_is_not_one_token_is_refused(bad: str) -> None:
    with pytest.raises(Rejected, match="is not one token of a subject"):
        DEFAULT.invoke(bad)


@pytest.mark.parametrize("bad", ["", ".", "a.", ".a", "a..b", "a.*", ">", "$JS", "a b"])
def test_a_prefix_that_is_none_is_refused(bad: str) -> None:
    with pytest.raises(Rejected, match="prefix is"):
        Subjects(bad)


@pytest.mark.parametrize(
    "strange",
    ["other.invoke.f", "runtime.serverless.invoke", "runtime.serverless.x.f", "runtime.serverless.invoke.f.g"],
)
def test_subjects_of_others_are_refused(strange: str) -> None:
    with pytest.raises(Rejected):
        DEFAULT.parse(strange)


def test_no_queue_forgets_by_age_and_every_queue_refuses_when_full() -> None:
    topology = Topology()
    for queue in Queue:
        stream = topology.queue(queue)
        assert (stream.max_age_seconds, stream.discard, stream.retention) == (None, "new", "workqueue")


def test_consumers_of_a_queue_do_not_overlap() -> None:
    topology = Topology()
    assert topology.work("a").filter_subject != topology.work("b").filter_subject
    assert topology.work("a").name != topology.work("b").name
