"""The leader's own: whom it takes in, whom it waits for, and what it leaves of strangers."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import psutil
import pytest

from infra.launcher.channel import connect
from infra.launcher.cluster import Cluster
from infra.launcher.leader import Leader
from infra.launcher.trust import Trust
from infra.launcher.verdicts import Verdict
from tests.fixtures.valkey import free_port

TRUST = Trust(token="a-token-of-this-test")
HOSTS = Cluster(("127.0.0.1",), ("127.0.0.2", "127.0.0.3"), "127.0.0.1")


@asynccontextmanager
async def leading():
    port = free_port()
    leader = Leader(HOSTS, TRUST, silence_s=30.0, lost_data_hosts=0)
    await leader.open("127.0.0.1", port)
    try:
        yield leader, port
    finally:
        await leader.close()


async def come(port, host):
    return await connect("127.0.0.1", port, own=host, trust=TRUST, silence_s=30.0, wait_s=5.0)


@pytest.mark.parametrize(
    "words",
    [b"[" * 60_000, b'{"launcher":1,"host":"x","nonce":"n","proof":"\\ud800"}', b'{"host":"\\ud800"}'],
)
def test_what_a_stranger_says_leaves_no_connection_open(words):
    async def run():
        async with leading() as (leader, port):
            before = psutil.Process().num_fds()
            for _ in range(20):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                await reader.readline()
                writer.write(words + b"\n")
                async with asyncio.timeout(5):
                    await reader.read()  # until the leader hangs up
                writer.close()
                await writer.wait_closed()
            assert not leader._following
            return before, psutil.Process().num_fds()

    before, after = asyncio.run(run())
    assert after <= before


def test_a_host_that_cannot_be_understood_is_lost():
    async def run():
        async with leading() as (leader, port):
            channel = await come(port, "127.0.0.2")
            channel._writer.write(b"[" * 60_000 + b"\n")
            async with asyncio.timeout(5):
                host, message = await leader._inbox.get()
            await channel.close()
            return host, message["lost"]

    host, lost = asyncio.run(run())
    assert host == "127.0.0.2"
    assert "speaks another language" in lost


async def told_to_end(channel):
    while "end" not in (message := await channel.hear()):
        pass
    return message


def test_a_host_that_comes_while_the_run_ends_is_told_and_not_waited_for():
    """It never hangs up by itself, and the leader may wait for an hour for those who were there."""

    async def run():
        async with leading() as (leader, port):
            early = await come(port, "127.0.0.2")
            ending = asyncio.create_task(leader.end(Verdict(7, "why"), 3600.0))
            assert await told_to_end(early) == {"end": 7, "reason": "why"}
            late = await come(port, "127.0.0.3")
            told = await told_to_end(late)
            await early.close()
            async with asyncio.timeout(10):
                await ending
            await late.close()
            return told

    assert asyncio.run(run()) == {"end": 7, "reason": "why"}


def test_a_host_that_comes_when_all_have_gone_is_told():
    async def run():
        async with leading() as (leader, port):
            early = await come(port, "127.0.0.2")
            ending = asyncio.create_task(leader.end(Verdict(7, "why"), 3600.0))
            await told_to_end(early)
            await early.close()
            await leader._gone.wait()
            late = await come(port, "127.0.0.3")
            told = await told_to_end(late)
            await ending
            await late.close()
            return told

    assert asyncio.run(run()) == {"end": 7, "reason": "why"}
