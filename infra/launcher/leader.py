"""The leader's side of a run: who is here, what each host reports, and how the run ends for all.

Members say ``done`` (with training's exit code) and ``failed`` (with a reason), and are lost when their
channel is; the leader says ``join`` (start what you bring), ``ready`` (train) and ``end``. What it starts in
between is :mod:`infra.launcher.services`'.
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
from infra.launcher.channel import MAX_LINE, NO_TERMS, Channel, ChannelLostError, RefusedError, admit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from infra.launcher.cluster import Cluster
    from infra.launcher.trust import Trust

__all__ = ["Leader"]

_log = logging.getLogger(__name__)

_SETTLE_S = 1.0
_LATE_S = 5.0  # hosts that have not come yet may still hear of the end
_STRANGERS_MAX = 100  # connections that have not said yet who they are
_REASON_CHARACTERS = 2000


class Leader:
    """Hears every host of a run.

    Args:
        cluster: who is to come.
        trust: what they must know.
        silence_s: a host that says nothing for so long is lost.
        lost_data_hosts: so many data hosts, this one not counted, may be lost or fail before the run ends.
        terms: what every host must have been started with.
    """

    def __init__(
        self,
        cluster: Cluster,
        trust: Trust,
        *,
        silence_s: float,
        lost_data_hosts: int,
        terms: Mapping[str, str] = NO_TERMS,
    ) -> None:
        self._cluster = cluster
        self._trust = trust
        self._terms = terms
        self._silence_s = silence_s
        self._may_lose = lost_data_hosts
        self._server: asyncio.Server | None = None
        self._strangers = 0
        self._channels: dict[str, Channel] = {}
        self._following: set[asyncio.Task[None]] = set()
        self._inbox: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()
        self._come: set[str] = set()
        self._lost: set[str] = set()
        self._codes: dict[str, int] = {}
        self._changed = asyncio.Condition()
        self._end: ExitStatus | None = None

    async def open(self, address: str, port: int) -> None:
        """Listen from now on.

        Raises:
            RunFailedError: the port is taken.
        """
        try:
            self._server = await asyncio.start_server(
                self._accept, address, port, limit=MAX_LINE, ssl=self._trust.server_tls
            )
        except OSError as error:
            msg = f"the leader cannot listen on {address}:{port}: {error}; another run? see --control-port"
            raise RunFailedError(EXIT_SERVICE_FAILED, msg) from error

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._strangers >= _STRANGERS_MAX:
            writer.close()
            return
        self._strangers += 1
        task = asyncio.get_running_loop().create_task(self._answer(reader, writer))
        self._following.add(task)
        task.add_done_callback(self._following.discard)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        try:
            try:
                host, channel = await admit(reader, writer, self._trust, self._silence_s, self._terms)
            finally:
                self._strangers -= 1
            await self._take_in(host, channel)
        except (RefusedError, ChannelLostError) as error:
            _log.warning("a connection from %s is not taken: %s", peer, error)
        finally:
            writer.close()

    async def _take_in(self, host: str, channel: Channel) -> None:
        if host not in self._cluster.hosts:
            hosts = ", ".join(self._cluster.hosts)
            await channel.refuse(f"{host[:80]} is none of the run's hosts: {hosts}")
        if host in self._channels:
            await channel.refuse(
                f"{host} is here already: its launcher runs twice, or another host has its name"
            )
        if host in self._come:
            await channel.refuse(f"{host} was here before and was lost: a host cannot come back to a run")
        channel.say(welcome=1)
        if self._end is not None:  # it hangs up by itself; nobody waits for it
            channel.say(end=self._end.code, reason=self._end.reason)
            await channel.close()
        else:
            _log.info("%s is here", host)
            self._channels[host] = channel
            channel.begin()
        self._come.add(host)
        await self._notify()
        if host in self._channels:
            await self._follow(host, channel)

    async def _follow(self, host: str, channel: Channel) -> None:
        try:
            while True:
                self._inbox.put_nowait((host, await channel.hear()))
        except ChannelLostError as error:
            self._inbox.put_nowait((host, {"lost": str(error)}))
        finally:
            del self._channels[host]
            await channel.close()
            await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _until(self, condition: Callable[[], bool], wait_s: float) -> bool:
        """Wait until the hosts here make the condition true; whether they have in that time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s), self._changed:
                await self._changed.wait_for(condition)
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
        if not await self._until(lambda: not self._missing(), wait_s):
            msg = f"{', '.join(self._missing())} did not appear within {wait_s:g} s (--start-wait-s)"
            raise RunFailedError(EXIT_NOT_READY, msg)

    def _missing(self) -> list[str]:
        return [host for host in self._cluster.hosts if host not in self._come]

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
            self._lose(host, _code(message.get("code")), f"{host}: {reason}")
        elif "lost" in message and host not in self._lost:
            self._lose(host, EXIT_HOST_LOST, f"{host} {message['lost']}")

    def _lose(self, host: str, code: int, reason: str) -> None:
        bearable = host in self._cluster.data_hosts and host != self._cluster.leader
        stopped = code > EXIT_SIGNAL  # somebody wants the run to end
        if not bearable or stopped or len(self._lost) >= self._may_lose:
            raise RunFailedError(code, reason)
        self._lost.add(host)
        if host in self._channels:
            self._channels[host].say(end=code, reason=reason)
        left = f"{len(self._lost)} of {self._may_lose} that may be lost"
        _log.warning("the run goes on without a data host (%s): %s", left, reason)

    async def end(self, status: ExitStatus, wait_s: float) -> None:
        """Tell all, and wait until each has ended its own and hung up; no longer than ``wait_s``.

        Of a run that fails while it begins, hosts may come a little later. They hear of the end too: else
        they would ask for a leader for as long as they may.
        """
        self._end = status
        self.tell(end=status.code, reason=status.reason)
        if not await self._until(lambda: not self._channels, wait_s):
            _log.warning("still there after %g s: %s", wait_s, ", ".join(self._channels))
        if self._server is not None and status.code not in {0, EXIT_NOT_READY} and status.code < EXIT_SIGNAL:
            await self._until(lambda: not self._missing(), min(wait_s, _LATE_S))

    async def close(self) -> None:
        """Hear nobody any more."""
        if self._server is not None:
            self._server.close()
        for task in list(self._following):
            task.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)


def _code(value: Any) -> int:
    """An exit code that a host has sent."""
    return value if isinstance(value, int) and 0 <= value <= 255 else EXIT_SERVICE_FAILED  # noqa: PLR2004
