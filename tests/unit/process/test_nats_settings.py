"""The NATS settings become connection options and stream limits, and contradictory settings are rejected."""

import pytest

from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.jetstream.connection_options import TlsOptions
from gpu_runtime.process.field_docs import field_doc
from gpu_runtime.process.nats_setup import nats_options, stream_topology
from gpu_runtime.process.settings import InvalidSettings, parse_settings
from gpu_runtime.process.shared_settings import NatsSettings, NatsTLSSettings, StreamSettings

REJECTED = {
    "two ways to log in": (
        "{user: u, tokenFile: /t}",
        "user and tokenFile are set; set only one of credentialsFile, user and tokenFile",
    ),
    "a password without a user": ("{passwordFile: /p}", "passwordFile is set without user"),
    "a key without a certificate": ("{tls: {keyFile: /k}}", "tls.keyFile is set without tls.certFile"),
    "another scheme": ("{urls: ['http://x']}", r"urls\[(0|\.\.\.)\]"),
    "no server": ("{urls: []}", "urls"),
    "a prefix with a wildcard": ("{prefix: 'a.*'}", "prefix"),
    "too many replicas": ("{streams: {replicas: 6}}", "streams.replicas"),
    "a payload that is larger than a message": ("{streams: {maxPayloadBytes: 1000000}}", "streams.maxPayloadBytes"),
    "an unknown key": ("{url: 'nats://x'}", "url is not a setting; did you mean urls?"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_invalid_nats_settings_are_rejected_by_key(case: str) -> None:
    text, message = REJECTED[case]
    with pytest.raises(InvalidSettings, match=message.replace("?", r"\?")):
        parse_settings(text, NatsSettings)


def test_nats_settings_become_options_and_streams() -> None:
    text = """
    urls: [tls://a:1, tls://b:2]
    credentialsFile: /creds
    tls: {caFile: /ca, serverName: nats}
    prefix: mine
    requestTimeoutSeconds: 3
    streams: {replicas: 3, maxMessagesPerSubject: 7, dispatchAckWaitSeconds: 4, recordRetentionSeconds: 60}
    """
    settings = parse_settings(text, NatsSettings)
    options = nats_options(settings, "activator")
    assert (options.urls, options.name, options.request_timeout) == (("tls://a:1", "tls://b:2"), "activator", 3)
    assert (options.credentials_file, options.tls) == ("/creds", TlsOptions("/ca", server_name="nats"))
    topology = stream_topology(settings)
    dispatch = topology.stream_spec(Stream.DISPATCH)
    assert (dispatch.name, dispatch.replicas, dispatch.max_messages_per_subject) == ("MINE_DISPATCH", 3, 7)
    assert (topology.dispatch_consumer("f").ack_wait_seconds, topology.record_bucket.ttl_seconds) == (4, 60)


def test_tls_defaults_to_the_url_scheme() -> None:
    assert nats_options(NatsSettings(), "x").tls is None
    assert nats_options(parse_settings("{tls: {enabled: true}}", NatsSettings), "x").requires_tls


@pytest.mark.parametrize("section", [NatsSettings, NatsTLSSettings, StreamSettings])
def test_every_field_is_documented(section: type) -> None:
    assert [name for name in section.__struct_fields__ if not field_doc(section, name)] == []  # type: ignore[attr-defined]
