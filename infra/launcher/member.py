"""One host's side of a run: it joins, brings its CPUs, trains if it is to, and ends at the leader's word."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

from infra.launcher.agreement import terms_of
from infra.launcher.channel import Channel, ChannelLostError, connect
from infra.launcher.racing import race
from infra.launcher.ray_auth import ray_environment, run_token
from infra.launcher.ray_service import ray_node
from infra.launcher.services import function_cpus
from infra.launcher.training import training
from infra.launcher.verdicts import (
    EXIT_LEADER_LOST,
    EXIT_NOT_READY,
    EXIT_SERVICE_FAILED,
    EXIT_WRONG_SETTINGS,
    RunFailedError,
    Verdict,
)
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from infra.launcher.cluster import Cluster
    from infra.launcher.processes import Child, Service
    from infra.launcher.settings import LaunchSettings
    from infra.launcher.trust import Trust

__all__ = ["Member"]

_log = logging.getLogger(__name__)

_ANSWER_S = 10.0
_NODE_END_S = 10.0


class Member:
    """What every host does, the leader too.

    Args:
        cluster: who is here.
        settings: how the run is launched.
        trust: how the leader is known.
        environment: of what is started here.
        command: the training script and its arguments.
        directory: a private one.
        address: this host's.
        stop: resolved by the reason, once somebody wants this host to end.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: LaunchSettings,
        trust: Trust,
        environment: Mapping[str, str],
        command: Sequence[str],
        directory: Path,
        *,
        address: str,
        stop: asyncio.Future[Verdict],
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._trust = trust
        self._environment = environment
        self._command = command
        self._directory = directory
        self._address = address
        self._stop = stop
        self._told: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._node: Service | None = None
        self._training: Child | None = None
        self._channel: Channel | None = None

    async def run(self) -> Verdict:
        """Until the leader's word; all that was started here is ended by then."""
        loop = asyncio.get_running_loop()
        self._told = {name: loop.create_future() for name in ("join", "ready", "end")}
        try:
            verdict = await self._until_the_end()
        except RunFailedError as error:
            verdict = error.verdict
        finally:
            await self._end_all()
        return verdict

    async def _until_the_end(self) -> Verdict:
        await race(self._connect(), self._stopped())
        channel = self._channel
        if channel is None:
            raise RunFailedError(EXIT_NOT_READY, f"{self._cluster.current} has no line to its leader")
        hearing = asyncio.get_running_loop().create_task(self._hear(channel))
        try:
            try:
                return await race(self._ended(), self._lost(hearing), self._stopped(), self._part(channel))
            except RunFailedError as error:
                if hearing.done():
                    raise
                _log.error("%s", error)
                channel.say(failed=error.verdict.reason, code=error.verdict.code)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_ANSWER_S):
                        return await race(self._ended(), self._lost(hearing))
                raise
        finally:
            hearing.cancel()

    async def _connect(self) -> None:
        settings = self._settings
        self._channel = await connect(
            self._cluster.leader,
            settings.control_port,
            own=self._cluster.current,
            trust=self._trust,
            silence_s=settings.silence_s,
            wait_s=settings.start_wait_s,
            terms=terms_of(self._cluster, settings, self._environment),
        )

    async def _hear(self, channel: Channel) -> None:
        while True:
            message = await channel.hear()
            for name, future in self._told.items():
                if name in message and not future.done():
                    future.set_result(message)

    async def _ended(self) -> Verdict:
        message = await asyncio.shield(self._told["end"])
        code, reason = message["end"], message.get("reason", "")
        return Verdict(code if isinstance(code, int) else EXIT_SERVICE_FAILED, str(reason))

    async def _lost(self, hearing: asyncio.Task[None]) -> Verdict:
        try:
            await asyncio.shield(hearing)
        except ChannelLostError as error:
            if self._told["end"].done():  # its last word came before
                return await self._ended()
            msg = f"the leader {self._cluster.leader} is lost: it {error}"
            raise RunFailedError(EXIT_LEADER_LOST, msg) from error
        raise AssertionError

    async def _stopped(self) -> Verdict:
        verdict = await asyncio.shield(self._stop)
        raise RunFailedError(verdict.code, verdict.reason)

    async def _part(self, channel: Channel) -> Verdict:
        """Its part of the run; what goes wrong in it is told to all as a reason, whatever it is."""
        try:
            return await self._work(channel)
        except RunFailedError:
            raise
        except ConfigError as error:
            msg = f"{self._cluster.current}: {error}"
            raise RunFailedError(EXIT_WRONG_SETTINGS, msg) from error
        except Exception as error:
            _log.exception("this host cannot do its part")
            msg = f"{self._cluster.current} cannot do its part: {error!r}"
            raise RunFailedError(EXIT_SERVICE_FAILED, msg) from error

    async def _work(self, channel: Channel) -> Verdict:
        cpus = function_cpus(self._cluster, self._settings, self._environment)  # before anything is started
        join = await asyncio.shield(self._told["join"])
        head = str(join.get("ray", ""))
        if head and cpus and not self._cluster.leads:
            self._node = ray_node(
                head,
                self._address,
                cpus,
                ray_environment(self._environment, self._ray_token(join)),
                self._directory,
                wait_s=self._settings.start_wait_s,
            )
            await self._node.start()
        channel.say(joined=1)
        if self._node is None:
            return await self._train(channel)
        return await race(self._keep(self._node), self._train(channel))

    def _ray_token(self, join: Mapping[str, Any]) -> str:
        return run_token(self._cluster, self._trust, str(join.get("ray_salt", "")))

    async def _keep(self, node: Service) -> Verdict:
        await node.keep()
        raise AssertionError

    async def _train(self, channel: Channel) -> Verdict:
        ready = await asyncio.shield(self._told["ready"])
        if self._cluster.trains:
            self._training = training(
                self._cluster,
                self._settings,
                self._environment,
                self._command,
                address=self._address,
                coordinator=str(ready.get("coordinator", "")),
                run_id=str(ready.get("run_id", "")),
            )
            await self._training.start()
            code = await self._training.ended()
            _log.log(logging.ERROR if code else logging.INFO, "%s", self._training.told(code))
            channel.say(done=code)
        return await self._ended()

    async def _end_all(self) -> None:
        if self._training is not None:
            await self._training.end(self._settings.stop_wait_s)
        if self._node is not None:
            await self._node.child.end(_NODE_END_S)
        if self._channel is not None:
            await self._channel.close()
