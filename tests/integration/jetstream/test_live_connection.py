"""A connection comes when the server does, returns after every loss, and tells its secrets to nobody else."""

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_runtime.jetstream.connection import NatsConnection, connect_nats
from gpu_runtime.jetstream.connection_options import ConnectionOptions, TlsOptions
from gpu_runtime.jetstream.errors import NatsMisconfigured, NatsUnreachable
from localcluster.nats_server import NatsAccount, NatsServer, temporary_nats_server
from localcluster.pki import CertificateAuthority
from tests.conftest import enter_or_skip
from tests.integration.jetstream.conftest import QUICK_BACKOFF, account_options
from tests.integration.jetstream.nats_operator_mode import operator
from tests.integration.kube.polling import eventually


async def round_trip(made: NatsConnection) -> bytes:
    """Say something to oneself through the server."""
    heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    subscription = await made.subscribe("hello", lambda message: heard.set_result(message.data))
    await made.publish("hello", b"hello")
    async with asyncio.timeout(60):
        data = await heard
    await made.unsubscribe(subscription)
    return data


async def publish_forever(made: NatsConnection) -> None:
    while True:
        await made.publish("x", bytes(500_000), timeout_seconds=0.1)


@asynccontextmanager
async def open_connection(wanted: ConnectionOptions) -> AsyncIterator[NatsConnection]:
    async with connect_nats(replace(wanted, backoff=QUICK_BACKOFF)) as made:
        yield made


async def wait_rejected(wanted: ConnectionOptions, why: str) -> str:
    """Not let in, for this reason. A server that hangs up may take its words with it: it is asked until it is heard."""
    async with open_connection(wanted) as made:
        await eventually(lambda: why in (made.problem() or ""), why)
        with pytest.raises(NatsUnreachable) as raised:
            await made.wait_connected(0.01)
    return str(raised.value)


async def test_late_reply_does_not_break_the_connection(
    own_nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_connection(replace(account_options(own_nats_server.create_account()), request_timeout=2)) as made:
        await made.wait_connected(60)
        subscription = await made.subscribe("x", lambda _message: None)
        await asyncio.to_thread(own_nats_server.processes.signal, "nats", signal.SIGSTOP)
        await made.unsubscribe(subscription)  # gives up waiting for the server
        await asyncio.to_thread(own_nats_server.processes.signal, "nats", signal.SIGCONT)
        assert await round_trip(made) == b"hello"
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_process_may_start_before_the_server(own_nats_server: NatsServer) -> None:
    account = own_nats_server.create_account()
    await asyncio.to_thread(own_nats_server.processes.stop, "nats")
    async with open_connection(account_options(account)) as made:
        await eventually(lambda: "Connect call failed" in (made.problem() or ""), "the problem is told")
        with pytest.raises(NatsUnreachable):
            await made.wait_connected(0.1)
        await asyncio.to_thread(own_nats_server.start)
        await made.wait_connected(60)
        assert made.problem() is None
        assert await round_trip(made) == b"hello"


async def test_listeners_are_notified_of_disconnect_and_reconnect(own_nats_server: NatsServer) -> None:
    told: list[bool] = []
    async with open_connection(account_options(own_nats_server.create_account())) as made:
        made.add_listener(told.append)
        await made.wait_connected(60)
        for signum in (signal.SIGKILL, signal.SIGTERM):
            await asyncio.to_thread(own_nats_server.processes.stop, "nats", signum)
            await eventually(lambda: not made.connected, "the loss is noticed")
            await asyncio.to_thread(own_nats_server.start)
            await made.wait_connected(60)
    assert told == [True, False, True, False, True, False]


async def test_paused_server_is_detected_by_missing_pongs(own_nats_server: NatsServer) -> None:
    async with open_connection(replace(account_options(own_nats_server.create_account()), ping_interval=0.3)) as made:
        await made.wait_connected(60)
        own_nats_server.processes.signal("nats", signal.SIGSTOP)
        try:
            await eventually(lambda: not made.connected, "the silence is noticed")
        finally:
            own_nats_server.processes.signal("nats", signal.SIGCONT)
        await made.wait_connected(60)
        assert await round_trip(made) == b"hello"


async def test_stalled_server_is_detected_and_blocks_no_sender(own_nats_server: NatsServer) -> None:
    """Also when so much waits to be sent that senders are held back."""
    wanted = account_options(own_nats_server.create_account())
    patient, impatient = replace(wanted, ping_interval=600), replace(wanted, ping_interval=0.3)
    async with open_connection(patient) as asking, open_connection(impatient) as sending:
        await asking.wait_connected(10)
        await sending.wait_connected(10)
        own_nats_server.processes.signal("nats", signal.SIGSTOP)
        try:
            async with asyncio.timeout(60):
                for _ in range(20):
                    with pytest.raises(NatsUnreachable):
                        await asking.request("x", bytes(500_000), timeout_seconds=0.1)
                with pytest.raises(NatsUnreachable):
                    await publish_forever(sending)
                await eventually(lambda: not sending.connected, "the loss is told")
        finally:
            own_nats_server.processes.signal("nats", signal.SIGCONT)
        await sending.wait_connected(20)
        assert await round_trip(sending) == b"hello"


async def test_failing_subscription_callback_does_not_affect_others(nats_account: NatsAccount) -> None:
    async with open_connection(account_options(nats_account)) as made:
        await made.wait_connected(10)
        await made.subscribe("hello", lambda _message: 1 / 0)  # type: ignore[arg-type]
        assert await round_trip(made) == b"hello"
        assert made.connected


async def test_one_reachable_url_is_enough(nats_account: NatsAccount) -> None:
    async with open_connection(ConnectionOptions(("nats://127.0.0.1:1", nats_account.url))) as made:
        await made.wait_connected(60)
        assert await round_trip(made) == b"hello"


async def test_authentication_error_does_not_log_the_password(
    nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    wanted = ConnectionOptions((f"nats://somebody:secret-word@127.0.0.1:{nats.port}",))
    said = await wait_rejected(wanted, "Authorization Violation (are the credentials right?)")
    assert "secret-word" not in said + "".join(str(vars(record)) for record in caplog.records)


async def test_revoked_user_reconnects_when_allowed_again(own_nats_server: NatsServer) -> None:
    account = own_nats_server.create_account()
    async with open_connection(account_options(account)) as made:
        await made.wait_connected(60)
        password = own_nats_server.accounts.pop(account.name)
        await asyncio.to_thread(own_nats_server.create_account)  # which makes the server read its configuration again
        await eventually(lambda: "Authorization" in (made.problem() or ""), "the refusal is told")
        own_nats_server.accounts[account.name] = password
        await asyncio.to_thread(own_nats_server.create_account)
        await made.wait_connected(60)
        assert await round_trip(made) == b"hello"


async def test_user_and_password_are_read_from_settings_and_file(nats_account: NatsAccount, tmp_path: Path) -> None:
    name, _, rest = nats_account.url.removeprefix("nats://").partition(":")
    password, _, address = rest.partition("@")
    file = tmp_path / "password"
    file.write_text("wrong\n")
    async with open_connection(ConnectionOptions((f"nats://{address}",), user=name, password_file=str(file))) as made:
        await eventually(lambda: "Authorization" in (made.problem() or ""), "it is refused")
        file.write_text(f"{password}\n")  # a Secret that was corrected needs no restart
        await made.wait_connected(60)


async def test_token_authenticates(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("open-sesame\n")
    with enter_or_skip(temporary_nats_server('authorization { token: "open-sesame" }')) as server:
        url = f"nats://127.0.0.1:{server.port}"
        async with open_connection(ConnectionOptions((url,), token_file=str(file))) as made:
            await made.wait_connected(60)
        await wait_rejected(ConnectionOptions((url,)), "Authorization Violation")


async def test_credentials_file_authenticates(tmp_path: Path) -> None:
    mine, strangers = operator(), operator()
    file, stranger = tmp_path / "user.creds", tmp_path / "stranger.creds"
    file.write_text(mine.credentials)
    stranger.write_text(strangers.credentials)
    with enter_or_skip(temporary_nats_server(mine.server_config)) as server:
        url = f"nats://127.0.0.1:{server.port}"
        async with open_connection(ConnectionOptions((url,), credentials_file=str(file))) as made:
            await made.wait_connected(60)
            assert await round_trip(made) == b"hello"
        await wait_rejected(ConnectionOptions((url,), credentials_file=str(stranger)), "Authorization Violation")


def tls_config(authority: CertificateAuthority, *, verify: bool) -> str:
    server = authority.issue("server", "nats", hosts=["localhost"])
    return (
        f'tls {{ cert_file: "{server.certificate}", key_file: "{server.key}", ca_file: "{authority.certificate}"'
        f", verify: {str(verify).lower()} }}"
    )


async def test_mutual_tls(tmp_path: Path) -> None:
    authority, others = CertificateAuthority(tmp_path / "pki"), CertificateAuthority(tmp_path / "others")
    client = authority.issue("client", "runtime-api")
    ours = TlsOptions(str(authority.certificate), str(client.certificate), str(client.key))
    with enter_or_skip(temporary_nats_server(tls_config(authority, verify=True))) as server:
        url = f"tls://localhost:{server.port}"
        async with open_connection(ConnectionOptions((url,), tls=ours)) as made:
            await made.wait_connected(60)
            assert await round_trip(made) == b"hello"
        by_number = f"nats://127.0.0.1:{server.port}"
        async with open_connection(ConnectionOptions((by_number,), tls=replace(ours, server_name="localhost"))) as made:
            await made.wait_connected(60)
        await wait_rejected(ConnectionOptions((by_number,), tls=ours), "certificate verify failed")  # another name
        await wait_rejected(
            ConnectionOptions((url,), tls=replace(ours, ca_file=str(others.certificate))), "certificate verify failed"
        )
        await wait_rejected(
            ConnectionOptions((url,), tls=TlsOptions(ours.ca_file)), "not connected to NATS: "
        )  # without one of its own


async def test_credentials_are_not_sent_without_tls(nats_account: NatsAccount) -> None:
    await wait_rejected(ConnectionOptions((nats_account.url,), tls=TlsOptions()), "the server offers no TLS")
    url = nats_account.url.replace("nats://", "tls://")
    await wait_rejected(ConnectionOptions((url,)), "the server offers no TLS")


WRONG = {
    "no address": (ConnectionOptions(()), "there is no address"),
    "another scheme": (ConnectionOptions(("http://u:secret@host:1",)), r"'http://host:1' is no address"),
    "a missing file": (ConnectionOptions(("nats://h",), credentials_file="/none"), "/none cannot be read"),
    "a missing authority": (
        ConnectionOptions(("nats://h",), tls=TlsOptions("/none")),
        "the certificates in /none cannot be used",
    ),
}


@pytest.mark.parametrize("case", WRONG)
async def test_invalid_connection_options_are_rejected_immediately(case: str) -> None:
    wanted, sentence = WRONG[case]
    with pytest.raises(NatsMisconfigured, match=sentence):
        async with connect_nats(wanted):
            pass


async def test_empty_credentials_file_is_rejected_immediately(tmp_path: Path) -> None:
    file = tmp_path / "user.creds"
    file.write_text("nothing of use")
    with pytest.raises(NatsMisconfigured, match="is no credentials file"):
        async with connect_nats(ConnectionOptions(("nats://h",), credentials_file=str(file))):
            pass


async def test_connection_closes_at_any_time(nats_account: NatsAccount) -> None:
    """Also where the end comes together with the server's answer, and the library forgets the one for the other."""
    for turns in range(60):
        async with asyncio.timeout(60), open_connection(account_options(nats_account)):
            for _ in range(turns):
                await asyncio.sleep(0)
            time.sleep(0.005)  # noqa: ASYNC251 - the answer comes while nobody looks


async def test_close_flushes_pending_messages(nats_account: NatsAccount) -> None:
    """At the end, a connection lets the server have what it was given."""
    heard: list[bytes] = []
    async with open_connection(account_options(nats_account)) as listening:
        await listening.wait_connected(60)
        await listening.subscribe("x", lambda message: heard.append(message.data))
        await round_trip(listening)
        async with open_connection(account_options(nats_account)) as made:
            await made.wait_connected(60)
            for number in range(1000):
                await made.publish("x", b"%d" % number)
        await eventually(lambda: len(heard) == 1000, "all have arrived")
