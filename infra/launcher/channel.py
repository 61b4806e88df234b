"""The channel between two hosts of a run: JSON objects, one on a line, over TCP or TLS, for the whole run.

Each side sends something at least every quarter of ``silence_s``, so that a host that vanishes is missed
after ``silence_s``. A channel begins with both sides proving that they know the run's token
(:mod:`infra.launcher.trust`), if there is one, and with the terms: what all hosts must have been started
with alike.

Members say ``ended``, an exit code with its reason, once training has or something fails, and are lost when
their channel is; the leader says ``go`` (start what you bring, and train) and ``end``. What a member uses
(``usage``) the leader hands on to the host of rank 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import ssl
import time
from typing import TYPE_CHECKING, Any

from infra.launcher import (
    EXIT_HOST_LOST,
    EXIT_NOT_READY,
    EXIT_REFUSED,
    EXIT_SERVICE_FAILED,
    EXIT_SIGNAL,
    ExitStatus,
    RunFailedError,
)
from superdl.experiments.monitoring import checked_usage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from infra.launcher.settings import Cluster
    from infra.launcher.trust import Trust

__all__ = [
    "_MAX_LINE",
    "Channel",
    "ChannelLostError",
    "Leader",
    "RefusedError",
    "admit",
    "connect",
    "status_of",
]

_log = logging.getLogger(__name__)

_MAX_LINE = 64 * 1024
_HANDSHAKE_S = 10.0
_BEAT = "beat"
_BEATS_IN_SILENCE = 4
_CONNECT_S = 5.0
_RETRY_S = 0.05
_RETRY_MAX_S = 1.0
_CLOSE_S = 2.0
_NONCE_BYTES = 16
_SETTLE_S = 1.0
_LATE_S = 5.0
_REASON_CHARACTERS = 2000
_CODE_MAX = 255


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
    hello = await channel.hear(_HANDSHAKE_S)
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
    challenge = str((await channel.hear(_HANDSHAKE_S)).get("challenge", ""))
    nonce = secrets.token_hex(_NONCE_BYTES)
    channel.say(host=own, nonce=nonce, proof=trust.proof("member", challenge, nonce, own), terms=terms)
    answer = await channel.hear(_HANDSHAKE_S)
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
                    host, port, limit=_MAX_LINE, ssl=trust.client_tls, server_hostname=name
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


class Leader:
    """Hears every host of a run: whom it expects, what they must know and have been started with."""

    def __init__(self, cluster: Cluster, trust: Trust, terms: str, silence_s: float) -> None:
        self._cluster = cluster
        self._trust = trust
        self._terms = terms
        self._silence_s = silence_s
        self._server: asyncio.Server | None = None
        self._channels: dict[str, Channel] = {}
        self._inbox: asyncio.Queue[tuple[str, ExitStatus]] = asyncio.Queue()
        self._come: set[str] = set()
        self._changed = asyncio.Event()
        self._end: ExitStatus | None = None

    async def open(self, address: str, port: int) -> None:
        """Listen from now on.

        Raises:
            RunFailedError: the port is taken.
        """
        try:
            self._server = await asyncio.start_server(
                self._answer, address, port, limit=_MAX_LINE, ssl=self._trust.server_tls
            )
        except OSError as error:
            raise RunFailedError(
                EXIT_SERVICE_FAILED,
                f"the leader cannot listen on {address}:{port}: {error}; another run? see --control-port",
            ) from error

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel = Channel(reader, writer, self._silence_s)
        try:
            host = await admit(channel, self._trust, self._terms, self._objection)
            await self._follow(host, channel)
        except (RefusedError, ChannelLostError) as error:
            _log.warning("a connection from %s is not taken: %s", writer.get_extra_info("peername"), error)
        finally:
            await channel.close()

    def _objection(self, host: str) -> str:
        if host not in self._cluster.hosts:
            return f"{host[:80]} is none of the run's hosts: {', '.join(self._cluster.hosts)}"
        if host in self._come:
            return f"{host} came before: its launcher runs twice, or another host has its name"
        return ""

    async def _follow(self, host: str, channel: Channel) -> None:
        _log.info("%s is here", host)
        self._come.add(host)
        self._channels[host] = channel
        self._changed.set()
        channel.begin()
        if self._end is not None:
            channel.say(end=self._end.code, reason=self._end.reason)
        try:
            while True:
                message = await channel.hear()
                if "usage" not in message:
                    self._inbox.put_nowait((host, status_of(message, "ended")))
                elif reporting := self._channels.get(self._cluster.training_hosts[0]):
                    look = checked_usage(message["usage"])
                    if look is not None and look["host"] == host:
                        reporting.say(usage=look)
        except ChannelLostError as error:
            self._inbox.put_nowait((host, ExitStatus(EXIT_HOST_LOST, f"{host} {error}")))
        finally:
            del self._channels[host]
            self._changed.set()

    async def _until(self, condition: Callable[[], bool], wait_s: float) -> bool:
        """Wait until the hosts make the condition true; whether they have in that time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        return condition()

    def tell(self, **words: Any) -> None:
        """Say the same to every host that is here."""
        for channel in self._channels.values():
            channel.say(**words)

    def _is_complete(self) -> bool:
        return self._come >= set(self._cluster.hosts)

    async def all_here(self, wait_s: float) -> None:
        """Wait until every host has come.

        Raises:
            RunFailedError: one does not appear in that time.
        """
        if not await self._until(self._is_complete, wait_s):
            missing = ", ".join(host for host in self._cluster.hosts if host not in self._come)
            raise RunFailedError(
                EXIT_NOT_READY, f"{missing} did not appear within {wait_s:g} s (--start-wait-s)"
            )

    async def outcome(self) -> ExitStatus:
        """How training ends, once it has on all training hosts, or one host has failed or is lost."""
        training = set(self._cluster.training_hosts)
        while training:
            host, status = await self._inbox.get()
            _log.info("%s has ended: %s", host, status.reason or "well")
            if status.code:
                return await self._first_cause(status)
            training.discard(host)
        return ExitStatus(0)

    async def _first_cause(self, status: ExitStatus) -> ExitStatus:
        """Wait a moment where ranks fail with 1: those of one host do so because those of another did."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_S):
                while status.code == 1:
                    _, other = await self._inbox.get()
                    status = other if other.code else status
        return status

    async def end(self, status: ExitStatus, wait_s: float) -> None:
        """Tell all, and wait until each has ended its own and hung up; no longer than ``wait_s``.

        Of a run that fails while it begins, hosts may come a little later. They hear of the end too: else
        they would ask for a leader for as long as they may.
        """
        self._end = status
        self.tell(end=status.code, reason=status.reason)
        if self._server is not None and status.code not in {0, EXIT_NOT_READY} and status.code < EXIT_SIGNAL:
            await self._until(self._is_complete, min(wait_s, _LATE_S))
        if not await self._until(lambda: not self._channels, wait_s):
            _log.warning("still there after %g s: %s", wait_s, ", ".join(self._channels))
        if self._server is not None:
            self._server.close()
        for channel in list(self._channels.values()):
            await channel.close()


def status_of(message: Mapping[str, Any], name: str) -> ExitStatus:
    """The exit code that a host has sent by this name, with its reason."""
    code, reason = message.get(name), str(message.get("reason", ""))[:_REASON_CHARACTERS]
    if isinstance(code, int) and 0 <= code <= _CODE_MAX:
        return ExitStatus(code, reason)
    return ExitStatus(EXIT_SERVICE_FAILED, reason)
