"""One host of a run. Every host is a member: it starts what it brings, trains, and ends when the leader says.

The first host leads as well: it starts the services and decides how the run ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from infra.launcher import (
    EXIT_LEADER_LOST,
    EXIT_SERVICE_FAILED,
    EXIT_SIGNAL,
    EXIT_WRONG_SETTINGS,
    ExitStatus,
    RunFailedError,
)
from infra.launcher.channel import Channel, ChannelLostError, Leader, connect, status_of
from infra.launcher.processes import Program, forever, race
from infra.launcher.services import LeaderServices, function_cpus, ray_service
from infra.launcher.training import training_command
from infra.launcher.trust import ray_environment, ray_token, terms_of
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infra.launcher import Launch

__all__ = ["Host"]

_log = logging.getLogger(__name__)

_MARGIN_S = 20.0  # beyond what training may take to end: its being killed, and the rest of a host
_ANSWER_S = 10.0
_NODE_END_S = 10.0


class Host:
    """One host of a run: a member, and on the first host the leader too."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._terms = terms_of(launch.cluster, launch.settings, launch.environment)
        self._stop: asyncio.Future[ExitStatus] = asyncio.get_running_loop().create_future()
        self._go: asyncio.Future[Mapping[str, str]] = asyncio.get_running_loop().create_future()

    async def run(self) -> ExitStatus:
        """Do this host's part until the run ends; nothing that was started is left by then."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)
        return await (self._lead() if self._launch.cluster.leads else self._take_part())

    def _on_signal(self, number: signal.Signals) -> None:
        if not self._stop.done():
            name = signal.Signals(number).name
            _log.warning("%s: the run is to end", name)
            reason = f"{self._launch.cluster.current} received {name}"
            self._stop.set_result(ExitStatus(EXIT_SIGNAL + number, reason))

    async def _stopped(self) -> NoReturn:
        status = await asyncio.shield(self._stop)
        raise RunFailedError(status.code, status.reason)

    # The member, which every host is.

    async def _take_part(self) -> ExitStatus:
        launch, settings = self._launch, self._launch.settings
        connecting = connect(
            launch.cluster.leader,
            settings.control_port,
            own=launch.cluster.current,
            trust=launch.trust,
            terms=self._terms,
            silence_s=settings.silence_s,
            wait_s=settings.start_wait_s,
        )
        async with contextlib.AsyncExitStack() as started:
            try:
                channel = await race(connecting, self._stopped())
                started.push_async_callback(channel.close)  # last: it says that the rest has ended
                return await self._until_the_end(channel, started)
            except RunFailedError as error:
                return error.status

    async def _until_the_end(self, channel: Channel, started: contextlib.AsyncExitStack) -> ExitStatus:
        hearing = asyncio.get_running_loop().create_task(self._hear(channel))
        try:
            return await race(asyncio.shield(hearing), self._stopped(), self._work(channel, started))
        except RunFailedError as error:
            if hearing.done():
                raise
            _log.error("%s", error)
            reason = f"{self._launch.cluster.current}: {error}"
            channel.say(ended=error.status.code, reason=reason)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ANSWER_S):
                    return await asyncio.shield(hearing)
            raise
        finally:
            hearing.cancel()

    async def _hear(self, channel: Channel) -> ExitStatus:
        """Take the leader's orders until it says ``end``."""
        while True:
            try:
                message = await channel.hear()
            except ChannelLostError as error:
                reason = f"the leader {self._launch.cluster.leader} is lost: it {error}"
                raise RunFailedError(EXIT_LEADER_LOST, reason) from error
            if "go" in message and not self._go.done():
                self._go.set_result(message["go"])
            if "end" in message:
                return status_of(message, "end")

    async def _work(self, channel: Channel, started: contextlib.AsyncExitStack) -> ExitStatus:
        """This host's work; what goes wrong in it becomes a reason for all, whatever it is."""
        try:
            go = await asyncio.shield(self._go)
            cpus = function_cpus(self._launch)
            if not go["ray"] or not cpus or self._launch.cluster.leads:
                return await self._train(channel, go, started)
            token = ray_token(self._launch.cluster, self._launch.trust, go["ray_salt"])
            node = ray_service(self._launch, go["ray"], cpus, token)
            started.push_async_callback(node.end, _NODE_END_S)
            await node.start()
            return await race(self._train(channel, go, started), node.keep())
        except RunFailedError:
            raise
        except ConfigError as error:
            raise RunFailedError(EXIT_WRONG_SETTINGS, str(error)) from error
        except Exception as error:
            _log.exception("this host cannot do its part")
            raise RunFailedError(EXIT_SERVICE_FAILED, f"it cannot do its part: {error!r}") from error

    async def _train(
        self, channel: Channel, go: Mapping[str, str], started: contextlib.AsyncExitStack
    ) -> NoReturn:
        if self._launch.cluster.trains:
            command, environment = training_command(self._launch, go["coordinator"], go["run_id"])
            training = Program("training", command, environment, quiet=False)
            started.push_async_callback(training.end, self._launch.settings.stop_wait_s)
            await training.start()
            code = await training.ended()
            _log.log(logging.ERROR if code else logging.INFO, "training ended with exit code %d", code)
            reason = f"training ended with exit code {code} on {self._launch.cluster.current}" if code else ""
            channel.say(ended=code, reason=reason)
        await forever()

    # The leader, which one host is beside that.

    async def _lead(self) -> ExitStatus:
        launch, cluster, settings = self._launch, self._launch.cluster, self._launch.settings
        leader = Leader(cluster, launch.trust, self._terms, settings.silence_s)
        salt = secrets.token_hex(32)
        run_id = launch.environment.get("TRAINING_JOB_NAME", "") or secrets.token_hex(8)
        if settings.own_ray:
            token = ray_token(cluster, launch.trust, salt)
            launch = replace(launch, environment=ray_environment(launch.environment, token))
        services = LeaderServices(launch, run_id)
        go = {"ray": services.ray, "coordinator": services.coordinator, "run_id": run_id}
        go["ray_salt"] = salt if len(cluster.hosts) > 1 else ""
        member = asyncio.get_running_loop().create_task(self._take_part())
        try:
            status = await self._outcome(leader, services, go, member)
            if status.code:
                _log.error("the run ends with exit code %d: %s", status.code, status.reason)
            await leader.end(status, settings.stop_wait_s + _MARGIN_S)
        finally:
            member.cancel()
            [own] = await asyncio.gather(member, return_exceptions=True)
            if isinstance(own, Exception):
                _log.error("this host's own part ended with %r", own)
            await services.end()
        return status

    async def _outcome(
        self,
        leader: Leader,
        services: LeaderServices,
        go: Mapping[str, str],
        member: asyncio.Task[ExitStatus],
    ) -> ExitStatus:
        """Bring the run to where training begins, keep what it needs alive, and wait for its end."""
        settings = self._launch.settings

        async def start_training() -> NoReturn:
            await leader.all_here(settings.start_wait_s)
            _log.info("all is ready: %s", go["coordinator"])
            leader.tell(go=go)
            await forever()

        try:
            await leader.open(self._launch.address, settings.control_port)
            # Its own member may end before it has a channel on which to say so.
            return await race(leader.outcome(), services.run(start_training), asyncio.shield(member))
        except RunFailedError as error:
            return error.status
        except ConfigError as error:
            return ExitStatus(EXIT_WRONG_SETTINGS, str(error))
