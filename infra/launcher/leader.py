"""The leader's side of a run: who is here, what each host reports, and how the run ends for all.

Members say ``done`` (with training's exit code) and ``failed`` (with a reason), and are lost when their
channel is; the leader says ``go`` (start what you bring, and train) and ``end``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

from infra.launcher import EXIT_HOST_LOST, EXIT_NOT_READY, EXIT_SERVICE_FAILED, ExitStatus, RunFailedError
from infra.launcher.channel import MAX_LINE, Channel, ChannelLostError, RefusedError, admit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from infra.launcher.settings import Cluster
    from infra.launcher.trust import Trust

__all__ = ["Leader"]

_log = logging.getLogger(__name__)

_SETTLE_S = 1.0
_STRANGERS_MAX = 100  # connections that have not said yet who they are
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
        self._strangers = 0
        self._channels: dict[str, Channel] = {}
        self._inbox: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()
        self._come: set[str] = set()
        self._codes: dict[str, int] = {}
        self._changed = asyncio.Event()

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
        if self._strangers >= _STRANGERS_MAX:
            writer.close()
            return
        self._strangers += 1
        channel = Channel(reader, writer, self._silence_s)
        try:
            try:
                host = await admit(channel, self._trust, self._terms, self._objection)
            finally:
                self._strangers -= 1
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
        try:
            while True:
                self._inbox.put_nowait((host, await channel.hear()))
        except ChannelLostError as error:
            self._inbox.put_nowait((host, {"lost": str(error)}))
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

    async def all_here(self, wait_s: float) -> None:
        """Wait until every host has come.

        Raises:
            RunFailedError: one does not appear in that time.
        """
        if not await self._until(lambda: self._come >= set(self._cluster.hosts), wait_s):
            missing = ", ".join(host for host in self._cluster.hosts if host not in self._come)
            raise RunFailedError(
                EXIT_NOT_READY, f"{missing} did not appear within {wait_s:g} s (--start-wait-s)"
            )

    async def outcome(self) -> ExitStatus:
        """How training ends, once all training hosts have reported it.

        Raises:
            RunFailedError: training fails on a host, or a host fails or is lost.
        """
        training = set(self._cluster.training_hosts)
        while not self._codes.keys() >= training and not any(self._codes.values()):
            self._take(*await self._inbox.get())
        if not any(self._codes.values()):
            return ExitStatus(0)
        # The ranks of one host fail because those of another did, and may be the first to report.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_S):
                while not self._codes.keys() >= training:
                    self._take(*await self._inbox.get())
        failed = {host: code for host, code in self._codes.items() if code}
        first = next((host for host, code in failed.items() if code != 1), next(iter(failed)))
        raise RunFailedError(failed[first], f"training ended with exit code {failed[first]} on {first}")

    def _take(self, host: str, message: Mapping[str, Any]) -> None:
        if "done" in message:
            self._codes[host] = _code(message["done"])
            _log.info("training is done on %s, with exit code %d", host, self._codes[host])
        elif "failed" in message:
            reason = str(message["failed"])[:_REASON_CHARACTERS]
            raise RunFailedError(_code(message.get("code")), f"{host}: {reason}")
        elif "lost" in message:
            raise RunFailedError(EXIT_HOST_LOST, f"{host} {message['lost']}")

    async def end(self, status: ExitStatus, wait_s: float) -> None:
        """Tell all, and wait until each has ended its own and hung up; no longer than ``wait_s``."""
        self.tell(end=status.code, reason=status.reason)
        if not await self._until(lambda: not self._channels, wait_s):
            _log.warning("still there after %g s: %s", wait_s, ", ".join(self._channels))
        if self._server is not None:
            self._server.close()
        for channel in list(self._channels.values()):
            await channel.close()


def _code(value: Any) -> int:
    """An exit code that a host has sent."""
    return value if isinstance(value, int) and 0 <= value <= _CODE_MAX else EXIT_SERVICE_FAILED
