"""Channels between hosts: whom each side takes, what it hears, when the other counts as gone; the leader."""

from __future__ import annotations

import asyncio
import json
import ssl
from contextlib import asynccontextmanager

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.launcher import EXIT_NOT_READY, EXIT_REFUSED, ExitStatus, RunFailedError
from infra.launcher.channel import MAX_LINE, Channel, ChannelLostError, RefusedError, admit, connect
from infra.launcher.cluster import Cluster
from infra.launcher.leader import Leader
from infra.launcher.trust import Trust
from tests.fixtures.valkey import free_port

OURS = Trust(token="a-token-of-this-test")
THEIRS = Trust(token="another-one-instead")


async def meet(leader, member, *, speak=None):
    """What each side has of the other's coming: a channel, or the error."""
    met = asyncio.get_running_loop().create_future()

    async def answer(reader, writer):
        try:
            host, channel = await admit(reader, writer, leader, 5.0)
            channel.say(welcome=1)
        except (RefusedError, ChannelLostError) as error:
            host, channel = "", error
            writer.close()
        met.set_result((host, channel))

    server = await asyncio.start_server(answer, "127.0.0.1", 0, limit=MAX_LINE, ssl=leader.server_tls)
    port = server.sockets[0].getsockname()[1]
    try:
        if speak is not None:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(speak)
            writer.close()
            await writer.wait_closed()
            return await met, None
        try:
            own = await connect("127.0.0.1", port, own="algo-7", trust=member, silence_s=5.0, wait_s=0.0)
        except RunFailedError as error:
            own = error
        return (await met if leader.server_tls is None or isinstance(own, Channel) else None), own
    finally:
        server.close()


async def closed(*channels):
    for channel in channels:
        await channel.close()


@pytest.mark.parametrize("trust", [Trust(), OURS])
def test_who_shares_the_token_is_taken_and_heard(trust):
    async def run():
        (host, there), here = await meet(trust, trust)
        here.say(done=3)
        heard = await there.hear()
        await closed(here, there)
        return host, heard

    assert asyncio.run(run()) == ("algo-7", {"done": 3})


@pytest.mark.parametrize(
    ("leader", "member", "told"),
    [
        (OURS, THEIRS, "it does not know the token"),
        (OURS, Trust(), "it does not know the token"),
        (Trust(), OURS, "it does not know the token"),
    ],
)
def test_who_does_not_is_refused(leader, member, told):
    async def run():
        return await meet(leader, member)

    (_, there), here = asyncio.run(run())
    assert isinstance(there, RefusedError)
    assert here.status.code == EXIT_REFUSED
    assert told in here.status.reason
    assert "token-of-this-test" not in here.status.reason


def test_a_leader_that_does_not_know_the_token_is_not_believed():
    """One that takes everybody, and so shows no proof."""

    async def run():
        async def answer(reader, writer):
            writer.write(b'{"launcher":2,"challenge":"00"}\n')
            await reader.readline()
            writer.write(b'{"proof":"' + b"0" * 64 + b'"}\n{"welcome":1}\n')
            await reader.read()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            await connect("127.0.0.1", port, own="a", trust=OURS, silence_s=5.0, wait_s=0.0)

    with pytest.raises(RunFailedError, match="the leader does not know the token") as failed:
        asyncio.run(run())
    assert failed.value.status.code == EXIT_REFUSED


def test_a_proof_is_good_for_its_challenge_and_its_side_alone():
    proof = OURS.proof("member", "challenge", "nonce", "host")
    assert OURS.accepts(proof, "member", "challenge", "nonce", "host")
    assert not OURS.accepts(proof, "leader", "challenge", "nonce", "host")
    assert not OURS.accepts(proof, "member", "challengen", "once", "host")
    assert not OURS.accepts("", "member", "challenge", "nonce", "host")
    assert not THEIRS.accepts(proof, "member", "challenge", "nonce", "host")


@pytest.mark.parametrize(
    ("bytes_", "told"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "speaks another language"),
        (b"[1]\n", "speaks another language"),
        (b"\xff\xfe\n", "speaks another language"),
        (b"x" * (2 * MAX_LINE), "cannot be heard any more"),
        (b"", "has closed the connection"),
        (b'{"launcher":1', "has closed the connection"),
        (b'{"launcher":1,"host":"a"}\n', "of version 2, the other of 1"),
    ],
)
def test_a_stranger_is_told_apart(bytes_, told):
    async def run():
        return await meet(Trust(), Trust(), speak=bytes_)

    (_, there), _ = asyncio.run(run())
    assert told in str(there)


_values = st.text(max_size=5) | st.integers() | st.none() | st.lists(st.integers(), max_size=2)
_messages = st.dictionaries(st.sampled_from(["launcher", "host", "nonce", "proof", "beat"]), _values)


@given(st.binary(max_size=300) | _messages.map(lambda message: json.dumps(message).encode() + b"\n"))
def test_whatever_a_stranger_says_is_refused(said):
    async def run():
        reader = asyncio.StreamReader(limit=MAX_LINE)
        reader.feed_data(said)
        reader.feed_eof()
        with pytest.raises((RefusedError, ChannelLostError)):
            await admit(reader, Deaf(), OURS, 5.0)

    asyncio.run(run())


class Deaf:
    """What is written to a stranger that never reads."""

    def write(self, data):
        pass

    def is_closing(self):
        return False

    def close(self):
        pass

    async def wait_closed(self):
        pass


def test_beats_come_by_themselves_and_are_not_heard():
    async def run():
        (_, there), here = await meet(Trust(), Trust())
        quick = Channel(here._reader, here._writer, 0.1)
        quick.begin()
        beats = [await there._reader.readline() for _ in range(3)]
        quick.say(done=1)
        heard = await there.hear()
        await closed(quick, here, there)
        return beats, heard

    assert asyncio.run(run()) == ([b'{"beat":1}\n'] * 3, {"done": 1})


def test_silence_is_noticed():
    async def run():
        (_, there), here = await meet(Trust(), Trust())
        silent = Channel(there._reader, there._writer, 0.05)
        try:
            here._beating.cancel()
            await silent.hear()
        finally:
            await closed(here, there)

    with pytest.raises(ChannelLostError, match=r"has said nothing for 0.05 s"):
        asyncio.run(run())


def server_context(pair):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.cert_file, pair.key_file)
    return context


def test_a_line_may_be_encrypted(certificates):
    leader = Trust(token=OURS.token, server_tls=server_context(certificates.server))
    member = Trust(token=OURS.token, client_tls=ssl.create_default_context(cafile=certificates.ca_file))

    async def run():
        (host, there), here = await meet(leader, member)
        here.say(done=0)
        heard = await there.hear()
        await closed(here, there)
        return host, heard

    assert asyncio.run(run()) == ("algo-7", {"done": 0})


@pytest.mark.parametrize("which", ["elsewhere", "expired"])
def test_a_certificate_that_does_not_fit_is_refused(certificates, which):
    leader = Trust(server_tls=server_context(getattr(certificates, which)))
    member = Trust(client_tls=ssl.create_default_context(cafile=certificates.ca_file))

    async def run():
        return await meet(leader, member)

    _, here = asyncio.run(run())
    assert here.status.code == EXIT_REFUSED
    assert "cannot agree on TLS" in here.status.reason
    assert "SUPER_COORDINATOR_CA_FILE" in here.status.reason


def test_nobody_there_is_told_after_the_wait():
    async def run():
        await connect("127.0.0.1", 1, own="algo-7", trust=Trust(), silence_s=5.0, wait_s=0.0)

    with pytest.raises(RunFailedError, match="the leader did not answer algo-7 at 127.0.0.1:1") as failed:
        asyncio.run(run())
    assert failed.value.status.code == EXIT_NOT_READY


HOSTS = Cluster(("127.0.0.1",), ("127.0.0.2", "127.0.0.3"), "127.0.0.1")


@asynccontextmanager
async def leading():
    port = free_port()
    leader = Leader(HOSTS, OURS, silence_s=30.0, lost_data_hosts=0)
    await leader.open("127.0.0.1", port)
    try:
        yield leader, port
    finally:
        await leader.close()


async def come(port, host):
    return await connect("127.0.0.1", port, own=host, trust=OURS, silence_s=30.0, wait_s=5.0)


@pytest.mark.parametrize(
    "words",
    [b"[" * 60_000, b'{"launcher":2,"host":"x","nonce":"n","proof":"\\ud800"}', b'{"host":"\\ud800"}'],
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


async def last_message(channel):
    while "end" not in (message := await channel.hear()):
        pass
    return message


@pytest.mark.parametrize("all_have_gone", [False, True])
def test_a_host_that_comes_when_the_run_ends_hears_of_it_and_nobody_waits_for_it(all_have_gone):
    """It never hangs up by itself, and the leader may wait for an hour for those who were there."""

    async def run():
        async with leading() as (leader, port):
            early = await come(port, "127.0.0.2")
            ending = asyncio.create_task(leader.end(ExitStatus(7, "why"), 3600.0))
            assert await last_message(early) == {"end": 7, "reason": "why"}
            if all_have_gone:
                await early.close()
                await leader._until(lambda: not leader._channels, 10)
            late = await come(port, "127.0.0.3")
            said = await last_message(late)
            await early.close()
            async with asyncio.timeout(10):
                await ending
            await late.close()
            return said

    assert asyncio.run(run()) == {"end": 7, "reason": "why"}
