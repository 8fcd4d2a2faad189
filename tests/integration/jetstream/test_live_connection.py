"""The NATS connection: reconnects, authentication, TLS, and protection of credentials."""

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


async def round_trip(connection: NatsConnection) -> bytes:
    """Publish a message and receive it on the same connection."""
    received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    subscription = await connection.subscribe("hello", lambda message: received.set_result(message.data))
    await connection.publish("hello", b"hello")
    async with asyncio.timeout(60):
        data = await received
    await connection.unsubscribe(subscription)
    return data


async def publish_forever(connection: NatsConnection) -> None:
    while True:
        await connection.publish("x", bytes(500_000), timeout_seconds=0.1)


@asynccontextmanager
async def open_connection(options: ConnectionOptions) -> AsyncIterator[NatsConnection]:
    async with connect_nats(replace(options, backoff=QUICK_BACKOFF)) as connection:
        yield connection


async def wait_rejected(options: ConnectionOptions, reason: str) -> str:
    """Wait until the server rejects the connection for this reason, and return the error of the connection.

    A server that closes the connection may not deliver its error, so this waits over several attempts.
    """
    async with open_connection(options) as connection:
        await eventually(lambda: reason in (connection.problem() or ""), reason)
        with pytest.raises(NatsUnreachable) as raised:
            await connection.wait_connected(0.01)
    return str(raised.value)


async def test_late_reply_does_not_break_the_connection(
    own_nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_connection(
        replace(account_options(own_nats_server.create_account()), request_timeout=2)
    ) as connection:
        await connection.wait_connected(60)
        subscription = await connection.subscribe("x", lambda _message: None)
        await asyncio.to_thread(own_nats_server.processes.signal, "nats", signal.SIGSTOP)
        await connection.unsubscribe(subscription)  # returns after its timeout, while the pong is still expected
        await asyncio.to_thread(own_nats_server.processes.signal, "nats", signal.SIGCONT)
        assert await round_trip(connection) == b"hello"
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_process_may_start_before_the_server(own_nats_server: NatsServer) -> None:
    account = own_nats_server.create_account()
    await asyncio.to_thread(own_nats_server.processes.stop, "nats")
    async with open_connection(account_options(account)) as connection:
        await eventually(lambda: "Connect call failed" in (connection.problem() or ""), "the problem is reported")
        with pytest.raises(NatsUnreachable):
            await connection.wait_connected(0.1)
        await asyncio.to_thread(own_nats_server.start)
        await connection.wait_connected(60)
        assert connection.problem() is None
        assert await round_trip(connection) == b"hello"


async def test_listeners_are_notified_of_disconnect_and_reconnect(own_nats_server: NatsServer) -> None:
    notifications: list[bool] = []
    async with open_connection(account_options(own_nats_server.create_account())) as connection:
        connection.add_listener(notifications.append)
        await connection.wait_connected(60)
        for signum in (signal.SIGKILL, signal.SIGTERM):
            await asyncio.to_thread(own_nats_server.processes.stop, "nats", signum)
            await eventually(lambda: not connection.connected, "the disconnect is detected")
            await asyncio.to_thread(own_nats_server.start)
            await connection.wait_connected(60)
    assert notifications == [True, False, True, False, True, False]


async def test_paused_server_is_detected_by_missing_pongs(own_nats_server: NatsServer) -> None:
    async with open_connection(
        replace(account_options(own_nats_server.create_account()), ping_interval=0.3)
    ) as connection:
        await connection.wait_connected(60)
        own_nats_server.processes.signal("nats", signal.SIGSTOP)
        try:
            await eventually(lambda: not connection.connected, "the missing pongs are detected")
        finally:
            own_nats_server.processes.signal("nats", signal.SIGCONT)
        await connection.wait_connected(60)
        assert await round_trip(connection) == b"hello"


async def test_stalled_server_is_detected_and_blocks_no_sender(own_nats_server: NatsServer) -> None:
    """This also holds when the write buffer is so full that senders must wait."""
    options = account_options(own_nats_server.create_account())
    without_pings, with_pings = replace(options, ping_interval=600), replace(options, ping_interval=0.3)
    async with open_connection(without_pings) as requester, open_connection(with_pings) as sender:
        await requester.wait_connected(10)
        await sender.wait_connected(10)
        own_nats_server.processes.signal("nats", signal.SIGSTOP)
        try:
            async with asyncio.timeout(60):
                for _ in range(20):
                    with pytest.raises(NatsUnreachable):
                        await requester.request("x", bytes(500_000), timeout_seconds=0.1)
                with pytest.raises(NatsUnreachable):
                    await publish_forever(sender)
                await eventually(lambda: not sender.connected, "the disconnect is detected")
        finally:
            own_nats_server.processes.signal("nats", signal.SIGCONT)
        await sender.wait_connected(20)
        assert await round_trip(sender) == b"hello"


async def test_failing_subscription_callback_does_not_affect_others(nats_account: NatsAccount) -> None:
    async with open_connection(account_options(nats_account)) as connection:
        await connection.wait_connected(10)
        await connection.subscribe("hello", lambda _message: 1 / 0)  # type: ignore[arg-type]
        assert await round_trip(connection) == b"hello"
        assert connection.connected


async def test_one_reachable_url_is_enough(nats_account: NatsAccount) -> None:
    async with open_connection(ConnectionOptions(("nats://127.0.0.1:1", nats_account.url))) as connection:
        await connection.wait_connected(60)
        assert await round_trip(connection) == b"hello"


async def test_authentication_error_does_not_log_the_password(
    nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    options = ConnectionOptions((f"nats://alice:secret-word@127.0.0.1:{nats.port}",))
    problem = await wait_rejected(options, "Authorization Violation (check the credentials)")
    assert "secret-word" not in problem + "".join(str(vars(record)) for record in caplog.records)


async def test_revoked_user_reconnects_when_allowed_again(own_nats_server: NatsServer) -> None:
    account = own_nats_server.create_account()
    async with open_connection(account_options(account)) as connection:
        await connection.wait_connected(60)
        password = own_nats_server.accounts.pop(account.name)
        await asyncio.to_thread(own_nats_server.create_account)  # reloads the configuration of the server
        await eventually(lambda: "Authorization" in (connection.problem() or ""), "the rejection is reported")
        own_nats_server.accounts[account.name] = password
        await asyncio.to_thread(own_nats_server.create_account)
        await connection.wait_connected(60)
        assert await round_trip(connection) == b"hello"


async def test_user_and_password_are_read_from_settings_and_file(nats_account: NatsAccount, tmp_path: Path) -> None:
    name, _, rest = nats_account.url.removeprefix("nats://").partition(":")
    password, _, address = rest.partition("@")
    file = tmp_path / "password"
    file.write_text("wrong\n")
    async with open_connection(
        ConnectionOptions((f"nats://{address}",), user=name, password_file=str(file))
    ) as connection:
        await eventually(lambda: "Authorization" in (connection.problem() or ""), "the rejection is reported")
        file.write_text(f"{password}\n")  # a corrected Secret takes effect without a restart
        await connection.wait_connected(60)


async def test_token_authenticates(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("open-sesame\n")
    with enter_or_skip(temporary_nats_server('authorization { token: "open-sesame" }')) as server:
        url = f"nats://127.0.0.1:{server.port}"
        async with open_connection(ConnectionOptions((url,), token_file=str(file))) as connection:
            await connection.wait_connected(60)
        await wait_rejected(ConnectionOptions((url,)), "Authorization Violation")


async def test_credentials_file_authenticates(tmp_path: Path) -> None:
    own, foreign = operator(), operator()
    own_file, foreign_file = tmp_path / "user.creds", tmp_path / "foreign.creds"
    own_file.write_text(own.credentials)
    foreign_file.write_text(foreign.credentials)
    with enter_or_skip(temporary_nats_server(own.server_config)) as server:
        url = f"nats://127.0.0.1:{server.port}"
        async with open_connection(ConnectionOptions((url,), credentials_file=str(own_file))) as connection:
            await connection.wait_connected(60)
            assert await round_trip(connection) == b"hello"
        await wait_rejected(ConnectionOptions((url,), credentials_file=str(foreign_file)), "Authorization Violation")


def tls_config(authority: CertificateAuthority, *, verify: bool) -> str:
    server = authority.issue("server", "nats", hosts=["localhost"])
    return (
        f'tls {{ cert_file: "{server.certificate}", key_file: "{server.key}", ca_file: "{authority.certificate}"'
        f", verify: {str(verify).lower()} }}"
    )


async def test_mutual_tls(tmp_path: Path) -> None:
    authority, foreign = CertificateAuthority(tmp_path / "pki"), CertificateAuthority(tmp_path / "foreign")
    client = authority.issue("client", "runtime-api")
    tls = TlsOptions(str(authority.certificate), str(client.certificate), str(client.key))
    with enter_or_skip(temporary_nats_server(tls_config(authority, verify=True))) as server:
        url = f"tls://localhost:{server.port}"
        async with open_connection(ConnectionOptions((url,), tls=tls)) as connection:
            await connection.wait_connected(60)
            assert await round_trip(connection) == b"hello"
        ip_url = f"nats://127.0.0.1:{server.port}"
        async with open_connection(
            ConnectionOptions((ip_url,), tls=replace(tls, server_name="localhost"))
        ) as connection:
            await connection.wait_connected(60)
        await wait_rejected(ConnectionOptions((ip_url,), tls=tls), "certificate verify failed")  # another host name
        await wait_rejected(
            ConnectionOptions((url,), tls=replace(tls, ca_file=str(foreign.certificate))), "certificate verify failed"
        )
        without_client_certificate = TlsOptions(tls.ca_file)
        await wait_rejected(ConnectionOptions((url,), tls=without_client_certificate), "not connected to NATS: ")


async def test_credentials_are_not_sent_without_tls(nats_account: NatsAccount) -> None:
    await wait_rejected(ConnectionOptions((nats_account.url,), tls=TlsOptions()), "the server does not offer TLS")
    url = nats_account.url.replace("nats://", "tls://")
    await wait_rejected(ConnectionOptions((url,)), "the server does not offer TLS")


INVALID_OPTIONS = {
    "no URL": (ConnectionOptions(()), "there is no NATS server URL"),
    "another scheme": (ConnectionOptions(("http://u:secret@host:1",)), r"'http://host:1' is not a NATS server URL"),
    "a missing file": (ConnectionOptions(("nats://h",), credentials_file="/none"), "cannot read /none"),
    "a missing CA file": (
        ConnectionOptions(("nats://h",), tls=TlsOptions("/none")),
        "cannot load the certificates from /none",
    ),
}


@pytest.mark.parametrize("case", INVALID_OPTIONS)
async def test_invalid_connection_options_are_rejected_immediately(case: str) -> None:
    options, message = INVALID_OPTIONS[case]
    with pytest.raises(NatsMisconfigured, match=message):
        async with connect_nats(options):
            pass


async def test_invalid_credentials_file_is_rejected_immediately(tmp_path: Path) -> None:
    file = tmp_path / "user.creds"
    file.write_text("not a credentials file")
    with pytest.raises(NatsMisconfigured, match="is not a NATS credentials file"):
        async with connect_nats(ConnectionOptions(("nats://h",), credentials_file=str(file))):
            pass


async def test_connection_closes_at_any_time(nats_account: NatsAccount) -> None:
    """This also holds if the close coincides with the server's response: nats-py then swallows the cancellation."""
    for iterations in range(60):
        async with asyncio.timeout(60), open_connection(account_options(nats_account)):
            for _ in range(iterations):
                await asyncio.sleep(0)
            time.sleep(0.005)  # noqa: ASYNC251 - the response must arrive while the event loop is blocked


async def test_close_flushes_pending_messages(nats_account: NatsAccount) -> None:
    received: list[bytes] = []
    async with open_connection(account_options(nats_account)) as subscriber:
        await subscriber.wait_connected(60)
        await subscriber.subscribe("x", lambda message: received.append(message.data))
        await round_trip(subscriber)
        async with open_connection(account_options(nats_account)) as connection:
            await connection.wait_connected(60)
            for number in range(1000):
                await connection.publish("x", b"%d" % number)
        await eventually(lambda: len(received) == 1000, "all messages have arrived")
