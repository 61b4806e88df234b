"""The line between two hosts of a run: JSON objects, one on a line, over TCP, kept for the whole run.

Each side says something at least every quarter of ``silence_s``, so that a host that is gone without a word
is missed after ``silence_s``. A line begins with both sides proving that they know the run's token
(:mod:`infra.launcher.trust`), if there is one. What is said on it is :mod:`infra.launcher.leader`'s and
:mod:`infra.launcher.member`'s.
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

from infra.launcher.agreement import difference
from infra.launcher.verdicts import EXIT_NOT_READY, EXIT_REFUSED, RunFailedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from infra.launcher.trust import Trust

__all__ = ["MAX_LINE", "Channel", "ChannelLostError", "RefusedError", "admit", "connect"]

MAX_LINE = 64 * 1024

_VERSION = 1
_BEAT = "beat"
_BEATS_IN_SILENCE = 4
_HANDSHAKE_S = 10.0
_CONNECT_S = 5.0
_RETRY_S = 0.05
_RETRY_MAX_S = 1.0
_CLOSE_S = 2.0
_NONCE_BYTES = 16
_NO_TERMS: Mapping[str, str] = MappingProxyType({})


class ChannelLostError(Exception):
    """The other side is gone, or speaks another language; says how."""


class RefusedError(Exception):
    """One side does not take the other; says why."""


class Channel:
    """One end of a line.

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

    def say(self, **words: Any) -> None:
        """Send a message; one to somebody who is gone is lost, which :meth:`hear` tells."""
        if not self._writer.is_closing():
            self._writer.write(json.dumps(words, separators=(",", ":")).encode() + b"\n")

    async def hear(self) -> dict[str, Any]:
        """The next message.

        Raises:
            ChannelLostError: there will be none.
        """
        while True:
            message = await self._line(self._silence_s)
            if _BEAT not in message:
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

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._silence_s / _BEATS_IN_SILENCE)
            self.say(**{_BEAT: 1})

    async def heard_in_handshake(self) -> dict[str, Any]:
        """The next message, which is due at once."""
        return await self._line(_HANDSHAKE_S)

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
    terms: Mapping[str, str] = _NO_TERMS,
) -> tuple[str, Channel]:
    """The leader's side of the beginning: who is there, and the line to it.

    The caller says ``welcome`` once it knows the host.

    Raises:
        RefusedError: it does not know the token, is of another version, or was told otherwise than ``terms``.
        ChannelLostError: it is gone, or none of ours.
    """
    channel = Channel(reader, writer, silence_s)
    challenge = secrets.token_hex(_NONCE_BYTES)
    channel.say(launcher=_VERSION, challenge=challenge)
    hello = await channel.heard_in_handshake()
    host, nonce, proof = (str(hello.get(name, "")) for name in ("host", "nonce", "proof"))
    if hello.get("launcher") != _VERSION:
        await _refuse(
            channel, f"this launcher is of version {_VERSION}, the other of {hello.get('launcher')!r}"
        )
    if not trust.accepts(proof, "member", challenge, nonce, host):
        await _refuse(channel, "it does not know the token: set SUPER_TOKEN to the same on every host")
    other = difference(terms, hello.get("terms"))
    if other:
        await _refuse(
            channel, f"it was told another {other} than its leader: start all with the same options"
        )
    channel.say(proof=trust.proof("leader", challenge, nonce, host))
    return host, channel


async def _refuse(channel: Channel, reason: str) -> None:
    channel.say(refused=reason)
    await channel.close()
    raise RefusedError(reason)


async def connect(
    host: str,
    port: int,
    *,
    own: str,
    trust: Trust,
    silence_s: float,
    wait_s: float,
    terms: Mapping[str, str] = _NO_TERMS,
) -> Channel:
    """A line to the leader, tried until it is there.

    Args:
        host: the leader's.
        port: where it listens.
        own: this host.
        trust: what it is to be shown, and to show.
        silence_s: see :class:`Channel`.
        wait_s: how long it is tried.
        terms: what both are to have been told alike: see :mod:`infra.launcher.agreement`.

    Raises:
        RunFailedError: the leader does not appear in that time, or does not take this host.
    """
    deadline_s = time.monotonic() + wait_s
    pauses = _pauses()
    while True:
        try:
            return await _connected(host, port, own, trust, silence_s, terms)
        except RefusedError as error:
            raise RunFailedError(
                EXIT_REFUSED, f"{own} and its leader {host} do not agree: {error}"
            ) from error
        except ssl.SSLError as error:
            msg = (
                f"the leader at {host}:{port} cannot be spoken to by TLS: {error}; see SUPER_TLS_CERT "
                "there and SUPER_COORDINATOR_CA_FILE here"
            )
            raise RunFailedError(EXIT_REFUSED, msg) from error
        except (OSError, ChannelLostError, TimeoutError) as error:
            if time.monotonic() > deadline_s:
                msg = (
                    f"the leader did not answer {own} at {host}:{port} within {wait_s:g} s: "
                    f"{str(error) or type(error).__name__}"
                )
                raise RunFailedError(EXIT_NOT_READY, msg) from error
        await asyncio.sleep(next(pauses))


def _pauses() -> Iterator[float]:
    pause_s = _RETRY_S
    while True:
        yield pause_s
        pause_s = min(_RETRY_MAX_S, 2 * pause_s)


async def _connected(
    host: str, port: int, own: str, trust: Trust, silence_s: float, terms: Mapping[str, str]
) -> Channel:
    async with asyncio.timeout(_CONNECT_S):
        reader, writer = await asyncio.open_connection(
            host,
            port,
            limit=MAX_LINE,
            ssl=trust.client_tls,
            server_hostname=(trust.server_name or host) if trust.client_tls is not None else None,
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
    """A member's side of the beginning; ``RefusedError`` or ``ChannelLostError`` if it comes to nothing."""
    greeting = await channel.heard_in_handshake()
    if greeting.get("launcher") != _VERSION:
        msg = f"this launcher is of version {_VERSION}, the leader's of {greeting.get('launcher')!r}"
        raise RefusedError(msg)
    challenge, nonce = str(greeting.get("challenge", "")), secrets.token_hex(_NONCE_BYTES)
    proof = trust.proof("member", challenge, nonce, own)
    channel.say(launcher=_VERSION, host=own, nonce=nonce, proof=proof, terms=dict(terms))
    answer = await channel.heard_in_handshake()
    if "refused" in answer:
        raise RefusedError(str(answer["refused"]))
    if not trust.accepts(str(answer.get("proof", "")), "leader", challenge, nonce, own):
        msg = "the leader does not know the token: set SUPER_TOKEN to the same on every host"
        raise RefusedError(msg)
    welcome = await channel.heard_in_handshake()
    if "refused" in welcome:
        raise RefusedError(str(welcome["refused"]))
