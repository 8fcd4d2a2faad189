"""Subjects are built from valid tokens, and parsing returns the same tokens."""

import pytest

from gpu_runtime.contract.errors import Rejected
from gpu_runtime.contract.messages.streams import StreamTopology
from gpu_runtime.contract.messages.subjects import ParsedSubject, Stream, Subjects

DEFAULT = Subjects()


def test_the_subjects_are_as_documented() -> None:
    assert DEFAULT.invoke("f") == "runtime.serverless.invoke.f"
    assert DEFAULT.dispatch("f") == "runtime.serverless.dispatch.f"
    assert DEFAULT.result("f") == "runtime.serverless.result.f"
    assert DEFAULT.dead_letter(Stream.INVOKE, "f") == "runtime.serverless.dlq.invoke.f"
    assert DEFAULT.events("f", "pod-1") == "runtime.serverless.events.f.pod-1"
    assert Subjects("mine").query("result") == "mine.query.result"


@pytest.mark.parametrize("prefix", ["runtime.serverless", "x", "a-b.c_d.E"])
def test_subjects_parse_back_to_their_parts(prefix: str) -> None:
    subjects = Subjects(prefix)
    assert subjects.parse(subjects.invoke("a-b_1")) == ParsedSubject("invoke", "a-b_1")
    assert subjects.parse(subjects.result("f")) == ParsedSubject("result", "f")
    assert subjects.parse(subjects.events("f", "p")) == ParsedSubject("events", "f", pod_uid="p")
    assert subjects.parse(subjects.dead_letter(Stream.RESULT, "f")) == ParsedSubject("dlq", "f", Stream.RESULT)


@pytest.mark.parametrize("bad", ["", "a.b", "A", "*", ">", "a b", "a\n", "ä"])
def test_function_id_that_is_not_one_token_is_rejected(bad: str) -> None:
    with pytest.raises(Rejected, match="is not one token of a subject"):
        DEFAULT.invoke(bad)
    with pytest.raises(Rejected, match="is not one token of a subject"):
        DEFAULT.events("f", bad)


@pytest.mark.parametrize("bad", ["", ".", "a.", ".a", "a..b", "a.*", ">", "$JS", "a b"])
def test_invalid_prefix_is_rejected(bad: str) -> None:
    with pytest.raises(Rejected, match="prefix is"):
        Subjects(bad)


@pytest.mark.parametrize(
    "foreign",
    [
        "other.invoke.f",
        "runtime.serverless.invoke",
        "runtime.serverless.x.f",
        "runtime.serverless.invoke.f.g",
        "runtime.serverless.events.f",
    ],
)
def test_foreign_subject_is_rejected(foreign: str) -> None:
    with pytest.raises(Rejected):
        DEFAULT.parse(foreign)


def test_work_streams_have_no_max_age_and_discard_new() -> None:
    topology = StreamTopology()
    for stream in Stream:
        spec = topology.stream_spec(stream)
        assert (spec.max_age_seconds, spec.discard, spec.retention) == (None, "new", "workqueue")


def test_consumers_of_a_stream_do_not_overlap() -> None:
    topology = StreamTopology()
    assert topology.dispatch_consumer("a").filter_subject != topology.dispatch_consumer("b").filter_subject
    assert topology.dispatch_consumer("a").name != topology.dispatch_consumer("b").name


REPLY = Subjects().reply("f", "a" * 32, "b" * 32)


def test_reply_subject_is_recognized_only_for_its_function() -> None:
    assert f"runtime.serverless.reply.f.{'a' * 32}.{'b' * 32}" == REPLY
    assert Subjects().replies("a" * 32) == f"runtime.serverless.reply.*.{'a' * 32}.*"
    assert Subjects().is_reply(REPLY, "f")
    assert not Subjects().is_reply(REPLY, "g")
    assert not Subjects("other").is_reply(REPLY, "f")


OTHER_REPLIES = (
    "",
    "_INBOX.abc.1",
    "$JS.API.STREAM.PURGE.RUNTIME_SERVERLESS_DISPATCH",
    "runtime.serverless.result.f",
    REPLY.removeprefix("runtime.serverless."),
    REPLY + ".x",
    REPLY[:-1],
    REPLY[:-1] + "*",
    REPLY[:-1] + ">",
    REPLY[:-1] + "B",
)


@pytest.mark.parametrize("subject", OTHER_REPLIES)
def test_other_subject_is_no_reply_subject(subject: str) -> None:
    assert not Subjects().is_reply(subject, "f")
