"""NATS accounts are isolated from each other, and JetStream stores messages."""

import asyncio

from nats.aio.client import Client as Nats
from nats.js.errors import NotFoundError

from localcluster.nats_server import NatsAccount, NatsServer


async def connected(account: NatsAccount) -> Nats:
    client = Nats()
    await client.connect(account.url)
    return client


def test_a_stream_keeps_messages(nats_account: NatsAccount) -> None:
    async def scenario() -> int:
        client = await connected(nats_account)
        jetstream = client.jetstream()
        await jetstream.add_stream(name="work", subjects=["work.>"])
        for number in range(3):
            await jetstream.publish("work.a", str(number).encode())
        info = await jetstream.stream_info("work")
        await client.close()
        return info.state.messages

    assert asyncio.run(scenario()) == 3


def test_accounts_do_not_see_each_other(nats: NatsServer, nats_account: NatsAccount) -> None:
    async def scenario() -> bool:
        first, second = await connected(nats_account), await connected(nats.create_account())
        await first.jetstream().add_stream(name="private", subjects=["x"])
        try:
            await second.jetstream().stream_info("private")
        except NotFoundError:
            return False
        finally:
            await first.close()
            await second.close()
        return True

    assert asyncio.run(scenario()) is False
