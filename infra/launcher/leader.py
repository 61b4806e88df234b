"""The leader's side of a run: who is here, what each host reports, and how the run ends for all.

Members say ``ended``, an exit code with its reason, once training has or something fails, and are lost when
their channel is; the leader says ``go`` (start what you bring, and train) and ``end``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

from infra.launcher import (
    EXIT_HOST_LOST,
    EXIT_NOT_READY,
    EXIT_SERVICE_FAILED,
    EXIT_SIGNAL,
    ExitStatus,
    RunFailedError,
)
from infra.launcher.channel import MAX_LINE, Channel, ChannelLostError, RefusedError, admit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from infra.launcher.settings import Cluster
    from infra.launcher.trust import Trust

__all__ = ["Leader", "status_of"]

_log = logging.getLogger(__name__)

_SETTLE_S = 1.0
_LATE_S = 5.0
_REASON_CHARACTERS = 2000
_CODE_MAX = 255


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
                self._answer, address, port, limit=MAX_LINE, ssl=self._trust.server_tls
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
                self._inbox.put_nowait((host, status_of(await channel.hear(), "ended")))
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
