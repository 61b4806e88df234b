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
from typing import TYPE_CHECKING, Any

from infra.launcher import EXIT_NOT_READY, EXIT_REFUSED, RunFailedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from infra.launcher.trust import Trust

__all__ = ["HANDSHAKE_S", "MAX_LINE", "Channel", "ChannelLostError", "RefusedError", "admit", "connect"]

HANDSHAKE_S = 10.0
MAX_LINE = 64 * 1024

_BEAT = "beat"
_BEATS_IN_SILENCE = 4
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
    """One end of a channel; without a word for ``silence_s``, the other side counts as gone."""

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

    async def hear(self, wait_s: float = 0.0) -> dict[str, Any]:
        """The next message, awaited for ``wait_s``, or for as long as the other side may be silent.

        Raises:
            ChannelLostError: there will be none.
        """
        while _BEAT in (message := await self._line(wait_s or self._silence_s)):
            pass
        return message

    async def _line(self, wait_s: float) -> dict[str, Any]:
        line = b""
        try:
            async with asyncio.timeout(wait_s):
                line = await self._reader.readline()
        except TimeoutError:
            raise ChannelLostError(f"has said nothing for {wait_s:g} s") from None
        except (ConnectionResetError, BrokenPipeError):
            pass
        except (OSError, ValueError) as error:  # ValueError: the line is longer than any of ours
            raise ChannelLostError(f"cannot be heard any more: {error}") from error
        if not line.endswith(b"\n"):
            raise ChannelLostError("has closed the connection")
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise ChannelLostError(f"speaks another language: {line[:40]!r}")
        return message

    async def close(self) -> None:
        """Send what was said, and hang up."""
        if self._beating is not None:
            self._beating.cancel()
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._writer.wait_closed()


async def admit(channel: Channel, trust: Trust, terms: str, objection: Callable[[str], str]) -> str:
    """The leader's side of the handshake; who is there.

    Args:
        channel: to whoever has connected; the caller closes it.
        trust: what the host must know.
        terms: what it must have been started with.
        objection: says of a host why it is not taken; nothing if it is.

    Raises:
        RefusedError: the host is not taken, and was told so.
        ChannelLostError: it is gone, or none of ours.
    """
    challenge = secrets.token_hex(_NONCE_BYTES)
    channel.say(challenge=challenge)
    hello = await channel.hear(HANDSHAKE_S)
    host, nonce, proof = (str(hello.get(name, "")) for name in ("host", "nonce", "proof"))
    if not trust.accepts(proof, "member", challenge, nonce, host):
        reason = "it does not know the token: set SUPER_TOKEN to the same on every host"
    elif hello.get("terms") != terms:
        reason = "it has another version, hosts or options than its leader: start all hosts alike"
    else:
        reason = objection(host)
    if reason:
        channel.say(refused=reason)
        raise RefusedError(reason)
    channel.say(proof=trust.proof("leader", challenge, nonce, host))
    return host


async def _introduce(channel: Channel, own: str, trust: Trust, terms: str) -> None:
    """A member's side of the handshake; raises where one side refuses the other."""
    challenge = str((await channel.hear(HANDSHAKE_S)).get("challenge", ""))
    nonce = secrets.token_hex(_NONCE_BYTES)
    channel.say(host=own, nonce=nonce, proof=trust.proof("member", challenge, nonce, own), terms=terms)
    answer = await channel.hear(HANDSHAKE_S)
    if "refused" in answer:
        raise RefusedError(str(answer["refused"]))
    if not trust.accepts(str(answer.get("proof", "")), "leader", challenge, nonce, own):
        raise RefusedError("the leader does not know the token: set SUPER_TOKEN to the same on every host")


async def connect(
    host: str, port: int, *, own: str, trust: Trust, terms: str, silence_s: float, wait_s: float
) -> Channel:
    """A channel from the host ``own`` to the leader, tried for ``wait_s`` until it is there.

    Raises:
        RunFailedError: the leader does not appear in that time, or one side refuses the other.
    """
    deadline_s, pause_s = time.monotonic() + wait_s, _RETRY_S
    name = (trust.server_name or host) if trust.client_tls else None
    while True:
        try:
            async with asyncio.timeout(_CONNECT_S):
                reader, writer = await asyncio.open_connection(
                    host, port, limit=MAX_LINE, ssl=trust.client_tls, server_hostname=name
                )
            channel = Channel(reader, writer, silence_s)
            try:
                await _introduce(channel, own, trust, terms)
            except BaseException:
                await channel.close()
                raise
        except RefusedError as error:
            raise RunFailedError(
                EXIT_REFUSED, f"{own} and its leader {host} do not agree: {error}"
            ) from error
        except ssl.SSLError as error:
            raise RunFailedError(
                EXIT_REFUSED,
                f"the leader at {host}:{port} and this host cannot agree on TLS: {error}; see SUPER_TLS_CERT "
                "there and SUPER_COORDINATOR_CA_FILE here",
            ) from error
        except (OSError, ChannelLostError, TimeoutError) as error:
            if time.monotonic() > deadline_s:
                why = str(error) or type(error).__name__
                raise RunFailedError(
                    EXIT_NOT_READY,
                    f"the leader did not answer {own} at {host}:{port} within {wait_s:g} s: {why}",
                ) from error
            await asyncio.sleep(pause_s)
            pause_s = min(_RETRY_MAX_S, 2 * pause_s)
        else:
            channel.begin()
            return channel
