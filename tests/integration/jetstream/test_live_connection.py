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

from gpu_runtime.jetstream.connection import Connection, connection
from gpu_runtime.jetstream.connection_options import Options, Tls
from gpu_runtime.jetstream.errors import Misconfigured, Unreachable
from localcluster.nats_server import Account, NatsServer, nats_server
from localcluster.pki import Authority
from tests.conftest import available
from tests.integration.jetstream.conftest import QUICK, options
from tests.integration.jetstream.operator_mode import operator
from tests.integration.kube.waiting import eventually


async def round_trip(made: Connection) -> bytes:
    """Say something to oneself through the server."""
    heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    subscription = await made.subscribe("hello", lambda message: heard.set_result(message.data))
    await made.publish("hello", b"hello")
    async with asyncio.timeout(60):
        data = await heard
    await made.unsubscribe(subscription)
    return data


async def sent_for_ever(made: Connection) -> None:
    while True:
        await made.publish("x", bytes(500_000), within=0.1)


@asynccontextmanager
async def connecting(wanted: Options) -> AsyncIterator[Connection]:
    async with connection(replace(wanted, backoff=QUICK)) as made:
        yield made


async def refused(wanted: Options, why: str) -> str:
    """Not let in, for this reason. A server that hangs up may take its words with it: it is asked until it is heard."""
    async with connecting(wanted) as made:
        await eventually(lambda: why in (made.problem() or ""), why)
        with pytest.raises(Unreachable) as raised:
            await made.wait(0.01)
    return str(raised.value)


async def test_an_answer_that_comes_when_nobody_waits_any_more_does_not_make_the_connection_deaf(
    mortal: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with connecting(replace(options(mortal.account()), request_timeout=2)) as made:
        await made.wait(60)
        subscription = await made.subscribe("x", lambda _message: None)
        await asyncio.to_thread(mortal.processes.signal, "nats", signal.SIGSTOP)
        await made.unsubscribe(subscription)  # gives up waiting for the server
        await asyncio.to_thread(mortal.processes.signal, "nats", signal.SIGCONT)
        assert await round_trip(made) == b"hello"
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_process_may_start_before_the_server(mortal: NatsServer) -> None:
    account = mortal.account()
    await asyncio.to_thread(mortal.processes.stop, "nats")
    async with connecting(options(account)) as made:
        await eventually(lambda: "Connect call failed" in (made.problem() or ""), "the problem is told")
        with pytest.raises(Unreachable):
            await made.wait(0.1)
        await asyncio.to_thread(mortal.start)
        await made.wait(60)
        assert made.problem() is None
        assert await round_trip(made) == b"hello"


async def test_every_loss_and_return_is_told(mortal: NatsServer) -> None:
    told: list[bool] = []
    async with connecting(options(mortal.account())) as made:
        made.listen(told.append)
        await made.wait(60)
        for signum in (signal.SIGKILL, signal.SIGTERM):
            await asyncio.to_thread(mortal.processes.stop, "nats", signum)
            await eventually(lambda: not made.connected, "the loss is noticed")
            await asyncio.to_thread(mortal.start)
            await made.wait(60)
    assert told == [True, False, True, False, True, False]


async def test_a_paused_server_is_noticed_by_its_silence(mortal: NatsServer) -> None:
    async with connecting(replace(options(mortal.account()), ping_interval=0.3)) as made:
        await made.wait(60)
        mortal.processes.signal("nats", signal.SIGSTOP)
        try:
            await eventually(lambda: not made.connected, "the silence is noticed")
        finally:
            mortal.processes.signal("nats", signal.SIGCONT)
        await made.wait(60)
        assert await round_trip(made) == b"hello"


async def test_a_server_that_takes_nothing_is_noticed_and_keeps_nobody_for_ever(mortal: NatsServer) -> None:
    """Also when so much waits to be sent that senders are held back."""
    wanted = options(mortal.account())
    patient, impatient = replace(wanted, ping_interval=600), replace(wanted, ping_interval=0.3)
    async with connecting(patient) as asking, connecting(impatient) as sending:
        await asking.wait(10)
        await sending.wait(10)
        mortal.processes.signal("nats", signal.SIGSTOP)
        try:
            async with asyncio.timeout(60):
                for _ in range(20):
                    with pytest.raises(Unreachable):
                        await asking.request("x", bytes(500_000), within=0.1)
                with pytest.raises(Unreachable):
                    await sent_for_ever(sending)
                await eventually(lambda: not sending.connected, "the loss is told")
        finally:
            mortal.processes.signal("nats", signal.SIGCONT)
        await sending.wait(20)
        assert await round_trip(sending) == b"hello"


async def test_a_receiver_that_fails_harms_nobody_else(nats_account: Account) -> None:
    async with connecting(options(nats_account)) as made:
        await made.wait(10)
        await made.subscribe("hello", lambda _message: 1 / 0)  # type: ignore[arg-type]
        assert await round_trip(made) == b"hello"
        assert made.connected


async def test_one_of_several_addresses_is_enough(nats_account: Account) -> None:
    async with connecting(Options(("nats://127.0.0.1:1", nats_account.url))) as made:
        await made.wait(60)
        assert await round_trip(made) == b"hello"


async def test_a_wrong_password_is_said_without_it(nats: NatsServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    wanted = Options((f"nats://somebody:secret-word@127.0.0.1:{nats.port}",))
    said = await refused(wanted, "Authorization Violation (are the credentials right?)")
    assert "secret-word" not in said + "".join(str(vars(record)) for record in caplog.records)


async def test_a_user_who_is_thrown_out_comes_back_when_he_may(mortal: NatsServer) -> None:
    account = mortal.account()
    async with connecting(options(account)) as made:
        await made.wait(60)
        password = mortal.accounts.pop(account.name)
        await asyncio.to_thread(mortal.account)  # which makes the server read its configuration again
        await eventually(lambda: "Authorization" in (made.problem() or ""), "the refusal is told")
        mortal.accounts[account.name] = password
        await asyncio.to_thread(mortal.account)
        await made.wait(60)
        assert await round_trip(made) == b"hello"


async def test_user_and_password_come_from_where_the_settings_say(nats_account: Account, tmp_path: Path) -> None:
    name, _, rest = nats_account.url.removeprefix("nats://").partition(":")
    password, _, address = rest.partition("@")
    file = tmp_path / "password"
    file.write_text("wrong\n")
    async with connecting(Options((f"nats://{address}",), user=name, password_file=str(file))) as made:
        await eventually(lambda: "Authorization" in (made.problem() or ""), "it is refused")
        file.write_text(f"{password}\n")  # a Secret that was corrected needs no restart
        await made.wait(60)


async def test_a_token_lets_in(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("open-sesame\n")
    with available(nats_server('authorization { token: "open-sesame" }')) as server:
        url = f"nats://127.0.0.1:{server.port}"
        async with connecting(Options((url,), token_file=str(file))) as made:
            await made.wait(60)
        await refused(Options((url,)), "Authorization Violation")


async def test_a_credentials_file_lets_in(tmp_path: Path) -> None:
    mine, strangers = operator(), operator()
    file, stranger = tmp_path / "user.creds", tmp_path / "stranger.creds"
    file.write_text(mine.credentials)
    stranger.write_text(strangers.credentials)
    with available(nats_server(mine.access)) as server:
        url = f"nats://127.0.0.1:{server.port}"
        async with connecting(Options((url,), credentials_file=str(file))) as made:
            await made.wait(60)
            assert await round_trip(made) == b"hello"
        await refused(Options((url,), credentials_file=str(stranger)), "Authorization Violation")


def secured(authority: Authority, *, verify: bool) -> str:
    server = authority.issue("server", "nats", hosts=["localhost"])
    return (
        f'tls {{ cert_file: "{server.certificate}", key_file: "{server.key}", ca_file: "{authority.certificate}"'
        f", verify: {str(verify).lower()} }}"
    )


async def test_tls_with_certificates_of_both_sides(tmp_path: Path) -> None:
    authority, others = Authority(tmp_path / "pki"), Authority(tmp_path / "others")
    client = authority.issue("client", "runtime-api")
    ours = Tls(str(authority.certificate), str(client.certificate), str(client.key))
    with available(nats_server(secured(authority, verify=True))) as server:
        url = f"tls://localhost:{server.port}"
        async with connecting(Options((url,), tls=ours)) as made:
            await made.wait(60)
            assert await round_trip(made) == b"hello"
        by_number = f"nats://127.0.0.1:{server.port}"
        async with connecting(Options((by_number,), tls=replace(ours, server_name="localhost"))) as made:
            await made.wait(60)
        await refused(Options((by_number,), tls=ours), "certificate verify failed")  # another name
        await refused(Options((url,), tls=replace(ours, ca_file=str(others.certificate))), "certificate verify failed")
        await refused(Options((url,), tls=Tls(ours.ca_file)), "not connected to NATS: ")  # without one of its own


async def test_credentials_are_not_given_to_a_server_without_tls(nats_account: Account) -> None:
    await refused(Options((nats_account.url,), tls=Tls()), "the server offers no TLS")
    url = nats_account.url.replace("nats://", "tls://")
    await refused(Options((url,)), "the server offers no TLS")


WRONG = {
    "no address": (Options(()), "there is no address"),
    "another scheme": (Options(("http://u:secret@host:1",)), r"'http://host:1' is no address"),
    "a missing file": (Options(("nats://h",), credentials_file="/none"), "/none cannot be read"),
    "a missing authority": (Options(("nats://h",), tls=Tls("/none")), "the certificates in /none cannot be used"),
}


@pytest.mark.parametrize("case", WRONG)
async def test_what_can_never_connect_is_said_at_once(case: str) -> None:
    wanted, sentence = WRONG[case]
    with pytest.raises(Misconfigured, match=sentence):
        async with connection(wanted):
            pass


async def test_a_credentials_file_without_credentials_is_said_at_once(tmp_path: Path) -> None:
    file = tmp_path / "user.creds"
    file.write_text("nothing of use")
    with pytest.raises(Misconfigured, match="is no credentials file"):
        async with connection(Options(("nats://h",), credentials_file=str(file))):
            pass


async def test_whenever_it_is_ended_it_ends(nats_account: Account) -> None:
    """Also where the end comes together with the server's answer, and the library forgets the one for the other."""
    for turns in range(60):
        async with asyncio.timeout(60), connecting(options(nats_account)):
            for _ in range(turns):
                await asyncio.sleep(0)
            time.sleep(0.005)  # noqa: ASYNC251 - the answer comes while nobody looks


async def test_what_was_sent_last_arrives(nats_account: Account) -> None:
    """At the end, a connection lets the server have what it was given."""
    heard: list[bytes] = []
    async with connecting(options(nats_account)) as listening:
        await listening.wait(60)
        await listening.subscribe("x", lambda message: heard.append(message.data))
        await round_trip(listening)
        async with connecting(options(nats_account)) as made:
            await made.wait(60)
            for number in range(1000):
                await made.publish("x", b"%d" % number)
        await eventually(lambda: len(heard) == 1000, "all have arrived")
