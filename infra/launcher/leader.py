"""The leader's side of a run: who is here, what each has told, and how it ends for all.

Members say ``joined``, ``done`` (with training's exit code), ``failed`` (with a reason) and are lost when
their line is; the leader says ``join``, ``ready`` and ``end``. What it starts in between is
:mod:`infra.launcher.services`'.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from infra.launcher.channel import MAX_LINE, Channel, ChannelLostError, RefusedError, admit
from infra.launcher.verdicts import (
    EXIT_HOST_LOST,
    EXIT_NOT_READY,
    EXIT_SERVICE_FAILED,
    EXIT_SIGNAL,
    RunFailedError,
    Verdict,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infra.launcher.cluster import Cluster
    from infra.launcher.trust import Trust

__all__ = ["Leader"]

_log = logging.getLogger(__name__)

_SETTLE_S = 1.0
_NO_TERMS: Mapping[str, str] = MappingProxyType({})
_LATE_S = 5.0  # hosts that have not come may still be told of the end
_STRANGERS_MAX = 100  # connections that have not said yet who they are


class Leader:
    """Hears every host of a run.

    Args:
        cluster: who is to come.
        trust: what they must know.
        silence_s: a host that says nothing for so long is lost.
        lost_data_hosts: so many data hosts, this one not counted, may be lost or fail before the run ends.
        terms: what every host is to have been told alike.

    Attributes:
        lost: those that were, while the run goes on.
    """

    def __init__(
        self,
        cluster: Cluster,
        trust: Trust,
        *,
        silence_s: float,
        lost_data_hosts: int,
        terms: Mapping[str, str] = _NO_TERMS,
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
        self._joined: set[str] = set()
        self.lost: set[str] = set()
        self._codes: dict[str, int] = {}
        self._changed = asyncio.Event()
        self._gone = asyncio.Event()
        self._verdict: Verdict | None = None

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
        try:
            await self._take_in(reader, writer)
        finally:
            writer.close()

    async def _take_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        try:
            host, channel = await admit(reader, writer, self._trust, self._silence_s, self._terms)
        except (RefusedError, ChannelLostError) as error:
            _log.warning("a connection from %s is not taken: %s", peer, error)
            return
        finally:
            self._strangers -= 1
        refusal = self._refusal(host)
        if refusal:
            _log.warning("%s at %s is not taken: %s", host[:80], peer, refusal)
            channel.say(refused=refusal)
            await channel.close()
            return
        self._come.add(host)
        self._changed.set()
        channel.say(welcome=1)
        if self._verdict is not None:
            _log.info("%s comes when the run has ended", host)
            channel.say(end=self._verdict.code, reason=self._verdict.reason)
            await channel.close()
            return
        _log.info("%s is here", host)
        self._channels[host] = channel
        channel.begin()
        await self._follow(host, channel)

    def _refusal(self, host: str) -> str:
        if host not in self._cluster.hosts:
            return f"it is none of the run's hosts: {', '.join(self._cluster.hosts)}"
        if host in self._channels:
            return f"{host} is here already: the launcher runs twice on it, or another host calls itself so"
        if host in self._come:
            return f"{host} was here before and was lost: a host cannot come back to a run"
        return ""

    async def _follow(self, host: str, channel: Channel) -> None:
        try:
            while True:
                self._inbox.put_nowait((host, await channel.hear()))
        except ChannelLostError as error:
            self._inbox.put_nowait((host, {"lost": str(error)}))
        except Exception as error:
            self._inbox.put_nowait((host, {"lost": f"cannot be followed any more: {error!r}"}))
            raise
        finally:
            del self._channels[host]
            if not self._channels:
                self._gone.set()
            await channel.close()

    def tell(self, **words: Any) -> None:
        """Say the same to every host that is here."""
        for channel in self._channels.values():
            channel.say(**words)

    async def all_here(self, wait_s: float) -> None:
        """Until every host has come.

        Raises:
            RunFailedError: one does not appear in that time.
        """
        await self._until_all(self._come, wait_s, "did not appear")

    async def all_joined(self, wait_s: float) -> None:
        """Until every host has what it brings.

        Raises:
            RunFailedError: one has not in that time.
        """
        await self._until_all(self._joined, wait_s, "did not get ready")

    async def _until_all(self, arrived: set[str], wait_s: float, fault: str) -> None:
        try:
            async with asyncio.timeout(wait_s):
                while set(self._cluster.hosts) - arrived - self.lost:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            late = [host for host in self._cluster.hosts if host not in arrived]
            msg = f"{', '.join(late)} {fault} within {wait_s:g} s (--start-wait-s)"
            raise RunFailedError(EXIT_NOT_READY, msg) from None

    async def verdict(self) -> Verdict:
        """What becomes of the run, once all that train have told of their end.

        Raises:
            RunFailedError: training fails on a host, or a host fails or is lost.
        """
        everyone = set(self._cluster.training_hosts)
        while not self._codes.keys() >= everyone and not any(self._codes.values()):
            self._take(*await self._inbox.get())
        if not any(self._codes.values()):
            return Verdict(0)
        # The ranks of one host fail because those of another did, and may be the first to tell.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_S):
                while not self._codes.keys() >= everyone:
                    self._take(*await self._inbox.get())
        failed = {host: code for host, code in self._codes.items() if code}
        first = next((host for host, code in failed.items() if code != 1), next(iter(failed)))
        raise RunFailedError(failed[first], f"training ended with exit code {failed[first]} on {first}")

    def _take(self, host: str, message: Mapping[str, Any]) -> None:
        if "joined" in message:
            self._joined.add(host)
        elif "done" in message:
            self._codes[host] = _code(message["done"], EXIT_SERVICE_FAILED)
            _log.info("training is done on %s, with exit code %d", host, self._codes[host])
        elif "failed" in message:
            reason = f"{host}: {str(message['failed'])[:2000]}"
            self._lose(host, _code(message.get("code"), EXIT_SERVICE_FAILED), reason)
        elif "lost" in message and host not in self.lost:
            self._lose(host, EXIT_HOST_LOST, f"{host} {message['lost']}")
        self._changed.set()

    def _lose(self, host: str, code: int, reason: str) -> None:
        bearable = host in self._cluster.data_hosts and host != self._cluster.leader
        stopped = code > EXIT_SIGNAL  # somebody wants the run to end
        if not bearable or stopped or len(self.lost) >= self._may_lose:
            raise RunFailedError(code, reason)
        self.lost.add(host)
        if host in self._channels:
            self._channels[host].say(end=code, reason=reason)
        _log.warning(
            "the run goes on without a data host (%d of %d that may be lost): %s",
            len(self.lost),
            self._may_lose,
            reason,
        )

    async def end(self, verdict: Verdict, wait_s: float) -> None:
        """Tell all, and wait until each has ended its own and hung up; no longer than ``wait_s``.

        Hosts that come now are told too, and not waited for. Of a run that fails while it begins they may
        come a little later, and would else ask for a leader for as long as they may.
        """
        self._verdict = verdict
        self.tell(end=verdict.code, reason=verdict.reason)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while self._channels:
                    self._gone.clear()
                    await self._gone.wait()
        if self._channels:
            _log.warning("still there after %g s: %s", wait_s, ", ".join(self._channels))
        if (
            self._server is not None
            and verdict.code not in {0, EXIT_NOT_READY}
            and verdict.code < EXIT_SIGNAL
        ):
            await self._tell_late(min(wait_s, _LATE_S))

    async def _tell_late(self, wait_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while set(self._cluster.hosts) - self._come:
                    self._changed.clear()
                    await self._changed.wait()

    async def close(self) -> None:
        """Hear nobody any more."""
        if self._server is not None:
            self._server.close()
        for task in list(self._following):
            task.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)


def _code(value: Any, default: int) -> int:
    return value if isinstance(value, int) and 0 <= value <= 255 else default  # noqa: PLR2004  # as exit codes are
