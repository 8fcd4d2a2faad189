"""The NATS section: what it says becomes how NATS is reached and what is kept; what contradicts itself is refused."""

import pytest

from gpu_runtime.contract.messages.subjects import Queue
from gpu_runtime.jetstream.connection_options import Tls
from gpu_runtime.process.field_docs import field_doc
from gpu_runtime.process.nats_setup import options_of, topology_of
from gpu_runtime.process.settings import BadSettings, parse
from gpu_runtime.process.shared_settings import Nats, NatsTLS, Streams

REFUSED = {
    "two ways to log in": ("{user: u, tokenFile: /t}", "user and tokenFile are given; say in one way"),
    "a password of nobody": ("{passwordFile: /p}", "passwordFile is given without user"),
    "a key of nothing": ("{tls: {keyFile: /k}}", "tls.keyFile is given without tls.certFile"),
    "another scheme": ("{urls: ['http://x']}", r"urls\[(0|\.\.\.)\]"),
    "no server": ("{urls: []}", "urls"),
    "a prefix with a wildcard": ("{prefix: 'a.*'}", "prefix"),
    "too many replicas": ("{streams: {replicas: 6}}", "streams.replicas"),
    "a body that no message holds": ("{streams: {bodyBytes: 1000000}}", "streams.bodyBytes"),
    "an unknown key": ("{url: 'nats://x'}", "url is not a setting; did you mean urls?"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_by_name(case: str) -> None:
    text, sentence = REFUSED[case]
    with pytest.raises(BadSettings, match=sentence.replace("?", r"\?")):
        parse(text, Nats)


def test_what_the_settings_say_is_what_is_done() -> None:
    text = """
    urls: [tls://a:1, tls://b:2]
    credentialsFile: /creds
    tls: {caFile: /ca, serverName: nats}
    prefix: mine
    requestTimeoutSeconds: 3
    streams: {replicas: 3, queuedPerFunction: 7, dispatchAckWaitSeconds: 4, stateRetentionSeconds: 60}
    """
    settings = parse(text, Nats)
    options = options_of(settings, "activator")
    assert (options.urls, options.name, options.request_timeout) == (("tls://a:1", "tls://b:2"), "activator", 3)
    assert (options.credentials_file, options.tls) == ("/creds", Tls("/ca", server_name="nats"))
    topology = topology_of(settings)
    dispatch = topology.queue(Queue.DISPATCH)
    assert (dispatch.name, dispatch.replicas, dispatch.max_messages_per_subject) == ("MINE_DISPATCH", 3, 7)
    assert (topology.work("f").ack_wait, topology.state.ttl_seconds) == (4, 60)


def test_without_words_on_tls_the_address_decides() -> None:
    assert options_of(Nats(), "x").tls is None
    assert options_of(parse("{tls: {enabled: true}}", Nats), "x").wants_tls


@pytest.mark.parametrize("section", [Nats, NatsTLS, Streams])
def test_every_field_is_documented(section: type) -> None:
    assert [name for name in section.__struct_fields__ if not field_doc(section, name)] == []  # type: ignore[attr-defined]
