"""``python -m infra.launcher [options] -- train.py [arguments]``: one host's part of a training run.

It starts on every host of the run, with the same options. Every host is a member: it starts what it brings,
trains, and ends when the leader says so. The first host leads as well: it starts the services and decides how
the run ends. The exit code is training's, on every host; else it says what failed (docs/clusters.md lists
them), and the reason is the last line on stderr and in the failure file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
import tempfile
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from infra.launcher import (
    EXIT_LEADER_LOST,
    EXIT_SERVICE_FAILED,
    EXIT_SIGNAL,
    EXIT_WRONG_SETTINGS,
    ExitStatus,
    Launch,
    RunFailedError,
)
from infra.launcher.channel import Channel, ChannelLostError, Leader, connect, status_of
from infra.launcher.needs import spec_of, steps_allowed
from infra.launcher.processes import Program, forever, race
from infra.launcher.services import LeaderServices, function_cpus, ray_service
from infra.launcher.settings import (
    Cluster,
    LaunchSettings,
    cluster_of,
    job_environment,
    parse,
    training_words,
)
from infra.launcher.training import training_command
from infra.launcher.trust import check_trust, ray_environment, ray_token, terms_of, trust_of
from infra.launcher.usage import tell_usage, usage_file, write_usage
from superdl.experiments.monitoring import HOST_USAGE
from superdl.super_wire.encryption import insecure_in, is_loopback
from superdl.super_wire.errors import ConfigError, SuperError
from superdl.super_wire.redaction import keep_secrets_out_of_logs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["main"]

_log = logging.getLogger("infra.launcher")

_MARGIN_S = 20.0  # beyond what training may take to end: its being killed, and the rest of a host
_ANSWER_S = 10.0
_NODE_END_S = 10.0
_FAILURE_FILE = Path("/opt/ml/output/failure")  # where SageMaker looks for the reason of a failure
_FAILURE_CHARACTERS = 1024  # of which it makes the job's FailureReason


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
        telling = asyncio.get_running_loop().create_task(tell_usage(channel, self._launch))
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
            telling.cancel()

    async def _hear(self, channel: Channel) -> ExitStatus:
        """Take the leader's orders until it says ``end``."""
        while True:
            try:
                message = await channel.hear()
            except ChannelLostError as error:
                reason = f"the leader {self._launch.cluster.leader} is lost: it {error}"
                raise RunFailedError(EXIT_LEADER_LOST, reason) from error
            if "usage" in message:
                write_usage(usage_file(self._launch), message["usage"])
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
            if self._launch.cluster.current == self._launch.cluster.training_hosts[0]:  # where rank 0 is
                environment[HOST_USAGE] = str(usage_file(self._launch))
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


async def _run_host(launch: Launch) -> ExitStatus:
    return await Host(launch).run()


def _run(settings: LaunchSettings, environment: Mapping[str, str]) -> ExitStatus:
    """Do this host's part until the run ends."""
    cluster = cluster_of(settings)
    command = training_words(settings)
    environment = {**job_environment(settings.config_dir), **environment}
    form = f"%(asctime)s launcher {cluster.current}: %(message)s"
    logging.basicConfig(level="INFO", format=form, stream=sys.stderr, force=True)
    keep_secrets_out_of_logs()
    data, training = ", ".join(cluster.data_hosts) or "none", ", ".join(cluster.training_hosts)
    _log.info("data hosts: %s; training hosts: %s; the leader is %s", data, training, cluster.leader)
    insecure = settings.insecure or insecure_in(environment)
    check_trust(cluster, settings, environment, insecure=insecure)
    spec = spec_of(command, environment)
    own = steps_allowed(spec, {**environment, "SUPER_INSECURE": "1"} if insecure else environment)
    # Its name is short, for socket paths have 107 bytes.
    with tempfile.TemporaryDirectory(prefix="super-l-", ignore_cleanup_errors=True) as directory:
        trust, address = trust_of(cluster, own), _own_address(cluster)
        launch = Launch(cluster, settings, trust, own, command, Path(directory), address, spec)
        return asyncio.run(_run_host(launch))


def _own_address(cluster: Cluster) -> str:
    """The IP address of this host, IPv4 where it has both.

    Raises:
        ConfigError: it has none, or one that the other hosts do not reach.
    """
    own = cluster.current
    try:
        found = socket.getaddrinfo(own, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"the name of this host, {own}, cannot be resolved: {error}") from error
    address = str(min(found, key=lambda item: item[0] != socket.AF_INET)[4][0])
    if is_loopback(address) and not cluster.on_loopback and len(cluster.hosts) > 1:
        msg = (
            f"{own} is {address} on {own} itself, where the other hosts do not reach it: name hosts by "
            "their addresses, or mend /etc/hosts"
        )
        raise ConfigError(msg)
    return address


def _write_failure(named: Path | None, reason: str) -> None:
    file = named or _FAILURE_FILE
    if named or file.parent.is_dir():
        try:
            file.write_text(reason[:_FAILURE_CHARACTERS] + "\n", encoding="utf-8")
        except OSError as error:
            sys.stderr.write(f"infra.launcher: the reason cannot be written to {file}: {error}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and do this host's part; the exit code."""
    settings = LaunchSettings(failure_file=None)
    try:
        status = _run(parse(sys.argv[1:] if argv is None else argv, settings), os.environ)
    except ConfigError as error:
        status = ExitStatus(EXIT_WRONG_SETTINGS, str(error))
    except SuperError as error:
        status = ExitStatus(1, str(error))
    except Exception as error:  # noqa: BLE001  # its reason belongs where people look for reasons
        traceback.print_exc()
        status = ExitStatus(EXIT_SERVICE_FAILED, f"the launcher itself failed: {error!r}")
    if status.code:
        _write_failure(settings.failure_file, status.reason)
        sys.stderr.write(f"infra.launcher: {status.reason}\n")
    return status.code


if __name__ == "__main__":
    sys.exit(main())
