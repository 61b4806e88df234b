"""Channels between hosts: whom each side takes, what it hears, when the other counts as gone; the leader."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.launcher import EXIT_HOST_LOST, EXIT_NOT_READY, EXIT_REFUSED, ExitStatus, RunFailedError
from infra.launcher.channel import Channel, ChannelLostError, Leader, RefusedError, admit, connect
from infra.launcher.settings import Cluster
from infra.launcher.trust import Trust
from tests.fixtures.ports import free_port

LINE = 64 * 1024  # the longest that is heard
OURS = Trust(token="a-token-of-this-test")
THEIRS = Trust(token="another-one-instead")
HOSTS = Cluster(("127.0.0.1",), ("127.0.0.2", "127.0.0.3"), "127.0.0.1")


@contextlib.asynccontextmanager
async def leading(trust=OURS, terms="alike"):
    port = free_port()
    leader = Leader(HOSTS, trust, terms, 30.0)
    await leader.open("127.0.0.1", port)
    try:
        yield leader, port
    finally:
        await leader.end(ExitStatus(0), 0.0)


async def come(port, host="127.0.0.2", trust=OURS, terms="alike", silence_s=30.0):
    return await connect(
        "127.0.0.1", port, own=host, trust=trust, terms=terms, silence_s=silence_s, wait_s=0.0
    )


def refusal(leader, member, host="127.0.0.2", terms="alike", *, before=()):
    """Why a host is not taken by the leader, or does not take it."""

    async def run():
        async with leading(leader) as (_, port):
            there = [await come(port, earlier, leader) for earlier in before]
            try:
                await come(port, host, member, terms)
            finally:
                for channel in there:
                    await channel.close()

    with pytest.raises(RunFailedError) as failed:
        asyncio.run(run())
    assert failed.value.status.code == EXIT_REFUSED
    return failed.value.status.reason


@pytest.mark.parametrize("encrypts", [False, True])
def test_who_shares_token_and_certificates_is_taken_and_heard(certificates, encrypts):
    leader = member = OURS
    if encrypts:
        leader = Trust(token=OURS.token, server_tls=server_context(certificates.server))
        member = Trust(token=OURS.token, client_tls=ssl.create_default_context(cafile=certificates.ca_file))

    async def run():
        async with leading(leader) as (there, port):
            here = await come(port, trust=member)
            there.tell(go={"run_id": "x"})
            heard = await here.hear()
            here.say(ended=3, reason="why")
            ended = await there.outcome()
            await here.close()
            return heard, ended

    assert asyncio.run(run()) == ({"go": {"run_id": "x"}}, ExitStatus(3, "why"))


@pytest.mark.parametrize(("leader", "member"), [(OURS, THEIRS), (OURS, Trust()), (Trust(), OURS)])
def test_who_lacks_the_token_is_refused(leader, member):
    reason = refusal(leader, member)
    assert "it does not know the token" in reason
    assert "token-of-this-test" not in reason


def test_other_terms_strangers_and_hosts_that_came_before_are_refused():
    assert "another version, hosts or options than its leader" in refusal(OURS, OURS, terms="others")
    assert "10.0.0.9 is none of the run's hosts" in refusal(OURS, OURS, "10.0.0.9")
    assert "127.0.0.2 came before" in refusal(OURS, OURS, before=["127.0.0.2"])


@pytest.mark.parametrize("which", ["elsewhere", "expired"])
def test_a_certificate_that_does_not_fit_is_refused(certificates, which):
    leader = Trust(server_tls=server_context(getattr(certificates, which)))
    member = Trust(client_tls=ssl.create_default_context(cafile=certificates.ca_file))
    reason = refusal(leader, member)
    assert "cannot agree on TLS" in reason
    assert "SUPER_COORDINATOR_CA_FILE" in reason


def server_context(pair):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.cert_file, pair.key_file)
    return context


def test_a_leader_that_does_not_know_the_token_is_not_believed():
    """One that takes everybody, and so shows no proof."""

    async def run():
        async def answer(reader, writer):
            writer.write(b'{"challenge":"00"}\n')
            await reader.readline()
            writer.write(b'{"proof":"' + b"0" * 64 + b'"}\n')
            await reader.read()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            await come(server.sockets[0].getsockname()[1])

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


_values = st.text(max_size=5) | st.integers() | st.none() | st.lists(st.integers(), max_size=2)
_messages = st.dictionaries(st.sampled_from(["host", "nonce", "proof", "terms", "beat"]), _values)


@given(st.binary(max_size=300) | _messages.map(lambda message: json.dumps(message).encode() + b"\n"))
def test_whatever_a_stranger_says_is_refused(said):
    class Deaf:
        def write(self, data):
            pass

        def is_closing(self):
            return False

    async def run():
        reader = asyncio.StreamReader(limit=LINE)
        reader.feed_data(said)
        reader.feed_eof()
        with pytest.raises((RefusedError, ChannelLostError)):
            await admit(Channel(reader, Deaf(), 5.0), OURS, "alike", lambda host: "")

    asyncio.run(run())


@pytest.mark.parametrize(
    "words", [b"[" * 60_000, b'{"host":"x","nonce":"n","proof":"\\ud800"}', b"x" * (2 * LINE)]
)
def test_what_a_stranger_says_leaves_no_connection_open(words):
    async def run():
        async with leading() as (_, port):
            before = psutil.Process().num_fds()
            for _ in range(20):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                await reader.readline()
                writer.write(words + b"\n")
                async with asyncio.timeout(5):
                    with contextlib.suppress(ConnectionResetError):
                        await reader.read()  # until the leader hangs up
                writer.close()
            await asyncio.sleep(0.1)
            return before, psutil.Process().num_fds()

    before, after = asyncio.run(run())
    assert after <= before


def test_silence_and_garbage_are_a_host_that_is_lost():
    async def run(*, speak):
        async with leading() as (leader, port):
            leader._silence_s = 0.2
            here = await come(port, silence_s=30.0)
            if speak:
                here._writer.write(b"[" * 60_000 + b"\n")
            async with asyncio.timeout(5):
                status = await leader.outcome()
            await here.close()
            return status

    assert asyncio.run(run(speak=False)) == ExitStatus(EXIT_HOST_LOST, "127.0.0.2 has said nothing for 0.2 s")
    assert "speaks another language" in asyncio.run(run(speak=True)).reason


def test_beats_keep_a_channel_alive_and_are_not_heard():
    async def run():
        async with leading() as (leader, port):
            leader._silence_s = 0.4
            here = await come(port, silence_s=0.4)
            hearing = asyncio.ensure_future(here.hear())
            await asyncio.sleep(1.0)
            leader.tell(go=1)
            heard = await hearing
            await here.close()
            return heard

    assert asyncio.run(run()) == {"go": 1}


def test_the_first_cause_is_the_runs_reason():
    """A rank that fails with 1, because another host's did with 7, may be reported first."""

    async def run():
        async with leading() as (leader, port):
            one, other = [await come(port, host) for host in ("127.0.0.2", "127.0.0.3")]
            one.say(ended=1, reason="connection lost")
            await asyncio.sleep(0.05)
            other.say(ended=7, reason="the cause")
            status = await leader.outcome()
            await asyncio.gather(one.close(), other.close())
            return status

    assert asyncio.run(run()) == ExitStatus(7, "the cause")


def test_nobody_there_is_told_after_the_wait():
    with pytest.raises(RunFailedError, match=r"the leader did not answer 127.0.0.2 at 127.0.0.1:1") as failed:
        asyncio.run(come(1))
    assert failed.value.status.code == EXIT_NOT_READY
