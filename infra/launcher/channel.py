"""The channel between two hosts of a run: JSON objects, one on a line, over TCP or TLS, for the whole run.

Each side sends something at least every quarter of ``silence_s``, so that a host that vanishes is missed
after ``silence_s``. A channel begins with both sides proving that they know the run's token
(:mod:`infra.launcher.trust`), if there is one, and with the terms: what all hosts must have been started
with alike. What they say on it is :mod:`infra.launcher.leader`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import ssl
import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from infra.launcher import EXIT_NOT_READY, EXIT_REFUSED, RunFailedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infra.launcher.trust import Trust

__all__ = ["MAX_LINE", "NO_TERMS", "Channel", "ChannelLostError", "RefusedError", "admit", "connect"]

MAX_LINE = 64 * 1024
NO_TERMS: Mapping[str, str] = MappingProxyType({})

_VERSION = 2
_BEAT = "beat"
_BEATS_IN_SILENCE = 4
_HANDSHAKE_S = 10.0
_CONNECT_S = 5.0
_RETRY_S = 0.05
_RETRY_MAX_S = 1.0
_CLOSE_S = 2.0
_NONCE_BYTES = 16


class ChannelLostError(Exception):
    """The other side is gone, or speaks another language; says how."""


class RefusedError(Exception):
    """One side does not take the other; says why."""


class Channel:
    """One end of a channel.

    Args:
        reader: what comes in.
        writer: what goes out.
        silence_s: without a word for so long, the other side counts as gone.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, silence_s: float) -> None:
        self._reader = reader
        self._writer = writer
        self._silence_s = silence_s
        self._beating: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Let the other side hear from now on that this one lives."""
        self._beating = asyncio.get_running_loop().create_task(self._beat())

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._silence_s / _BEATS_IN_SILENCE)
            self.say(**{_BEAT: 1})

    def say(self, **words: Any) -> None:
        """Send a message; where nobody receives it, :meth:`hear` fails."""
        if not self._writer.is_closing():
            self._writer.write(json.dumps(words, separators=(",", ":")).encode() + b"\n")

    async def hear(self) -> dict[str, Any]:
        """The next message.

        Raises:
            ChannelLostError: there will be none.
        """
        while _BEAT in (message := await self._line(self._silence_s)):
            pass
        return message

    async def hear_promptly(self) -> dict[str, Any]:
        """The next message of a handshake, which is due at once.

        Raises:
            ChannelLostError: there will be none.
            RefusedError: the other side does not take this one.
        """
        message = await self._line(_HANDSHAKE_S)
        if "refused" in message:
            raise RefusedError(str(message["refused"]))
        return message

    async def _line(self, wait_s: float) -> dict[str, Any]:
        try:
            async with asyncio.timeout(wait_s):
                line = await self._reader.readline()
        except TimeoutError:
            msg = f"has said nothing for {wait_s:g} s"
            raise ChannelLostError(msg) from None
        except (ConnectionResetError, BrokenPipeError):
            line = b""
        except (OSError, ValueError) as error:  # ValueError: the line is longer than any of ours
            msg = f"cannot be heard any more: {error}"
            raise ChannelLostError(msg) from error
        if not line.endswith(b"\n"):
            msg = "has closed the connection"
            raise ChannelLostError(msg)
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            msg = f"speaks another language: {line[:40]!r}"
            raise ChannelLostError(msg)
        return message

    async def refuse(self, reason: str) -> None:
        """Tell the other side why it is not taken, and hang up.

        Raises:
            RefusedError: always.
        """
        self.say(refused=reason)
        await self.close()
        raise RefusedError(reason)

    async def close(self) -> None:
        """Send what was said, and hang up."""
        if self._beating is not None:
            self._beating.cancel()
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._writer.wait_closed()


async def admit(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    trust: Trust,
    silence_s: float,
    terms: Mapping[str, str] = NO_TERMS,
) -> tuple[str, Channel]:
    """The leader's side of the handshake: who is there, and the channel to it.

    The caller says ``welcome`` once it knows the host.

    Raises:
        RefusedError: the host lacks the token, or has another version or other terms.
        ChannelLostError: it is gone, or none of ours.
    """
    channel = Channel(reader, writer, silence_s)
    challenge = secrets.token_hex(_NONCE_BYTES)
    channel.say(launcher=_VERSION, challenge=challenge)
    hello = await channel.hear_promptly()
    host, nonce, proof = (str(hello.get(name, "")) for name in ("host", "nonce", "proof"))
    if hello.get("launcher") != _VERSION:
        await channel.refuse(
            f"this launcher is of version {_VERSION}, the other of {hello.get('launcher')!r}"
        )
    if not trust.accepts(proof, "member", challenge, nonce, host):
        await channel.refuse("it does not know the token: set SUPER_TOKEN to the same on every host")
    theirs = hello.get("terms")
    for name, value in terms.items():
        if not isinstance(theirs, dict) or theirs.get(name) != value:
            await channel.refuse(f"its {name} is another than its leader's: start all with the same options")
    channel.say(proof=trust.proof("leader", challenge, nonce, host))
    return host, channel


async def connect(
    host: str,
    port: int,
    *,
    own: str,
    trust: Trust,
    silence_s: float,
    wait_s: float,
    terms: Mapping[str, str] = NO_TERMS,
) -> Channel:
    """A channel to the leader, tried until it is there.

    Args:
        host: the leader's.
        port: where it listens.
        own: this host.
        trust: what this host shows, and what the leader must show.
        silence_s: see :class:`Channel`.
        wait_s: how long to try.
        terms: what both must have been started with.

    Raises:
        RunFailedError: the leader does not appear in that time, or one side refuses the other.
    """
    deadline_s, pause_s = time.monotonic() + wait_s, _RETRY_S
    while True:
        try:
            return await _connected(host, port, own, trust, silence_s, terms)
        except RefusedError as error:
            msg = f"{own} and its leader {host} do not agree: {error}"
            raise RunFailedError(EXIT_REFUSED, msg) from error
        except ssl.SSLError as error:
            msg = (
                f"the leader at {host}:{port} and this host cannot agree on TLS: {error}; see SUPER_TLS_CERT "
                "there and SUPER_COORDINATOR_CA_FILE here"
            )
            raise RunFailedError(EXIT_REFUSED, msg) from error
        except (OSError, ChannelLostError, TimeoutError) as error:
            if time.monotonic() > deadline_s:
                why = str(error) or type(error).__name__
                msg = f"the leader did not answer {own} at {host}:{port} within {wait_s:g} s: {why}"
                raise RunFailedError(EXIT_NOT_READY, msg) from error
        await asyncio.sleep(pause_s)
        pause_s = min(_RETRY_MAX_S, 2 * pause_s)


async def _connected(
    host: str, port: int, own: str, trust: Trust, silence_s: float, terms: Mapping[str, str]
) -> Channel:
    encrypts = trust.client_tls is not None
    async with asyncio.timeout(_CONNECT_S):
        reader, writer = await asyncio.open_connection(
            host,
            port,
            limit=MAX_LINE,
            ssl=trust.client_tls,
            server_hostname=(trust.server_name or host) if encrypts else None,
        )
    channel = Channel(reader, writer, silence_s)
    try:
        await _introduce(channel, own, trust, terms)
    except BaseException:
        await channel.close()
        raise
    channel.begin()
    return channel


async def _introduce(channel: Channel, own: str, trust: Trust, terms: Mapping[str, str]) -> None:
    """A member's side of the handshake; raises where one side refuses the other."""
    greeting = await channel.hear_promptly()
    if greeting.get("launcher") != _VERSION:
        msg = f"this launcher is of version {_VERSION}, the leader's of {greeting.get('launcher')!r}"
        raise RefusedError(msg)
    challenge, nonce = str(greeting.get("challenge", "")), secrets.token_hex(_NONCE_BYTES)
    proof = trust.proof("member", challenge, nonce, own)
    channel.say(launcher=_VERSION, host=own, nonce=nonce, proof=proof, terms=dict(terms))
    answer = await channel.hear_promptly()
    if not trust.accepts(str(answer.get("proof", "")), "leader", challenge, nonce, own):
        msg = "the leader does not know the token: set SUPER_TOKEN to the same on every host"
        raise RefusedError(msg)
    await channel.hear_promptly()  # welcome
