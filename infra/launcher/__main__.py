"""``python -m infra.launcher [options] -- train.py [arguments]``: one host's part of a training run.

It starts on every host of the run, with the same options. SageMaker names the hosts, elsewhere flags or the
same variables do. Every host is a member: it starts what it brings, trains, and ends when the leader says so.
The first host leads as well: it starts the services and decides how the run ends. The exit code is
training's, on every host; else it says what failed (docs/clusters.md lists them), and the reason is the last
line on stderr and in the failure file.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from infra.launcher import (
    EXIT_LEADER_LOST,
    EXIT_SERVICE_FAILED,
    EXIT_SIGNAL,
    EXIT_WRONG_SETTINGS,
    ExitStatus,
    RunFailedError,
)
from infra.launcher.channel import Channel, ChannelLostError, connect
from infra.launcher.cluster import address_of, cluster_of, script_arguments
from infra.launcher.leader import Leader
from infra.launcher.options import FAILURE_FILE, parse, settings_of
from infra.launcher.processes import Program, race
from infra.launcher.services import LeaderServices, function_cpus, ray_service
from infra.launcher.training import training_command
from infra.launcher.trust import check_trust, ray_environment, ray_token, terms_of, trust_of
from superdl.super_wire.encryption import insecure_in, is_loopback
from superdl.super_wire.errors import ConfigError, SuperError
from superdl.super_wire.redaction import keep_secrets_out_of_logs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from infra.launcher.cluster import Cluster
    from infra.launcher.options import LaunchSettings
    from infra.launcher.trust import Trust

__all__ = ["main", "run_host"]

_log = logging.getLogger("infra.launcher")

_MARGIN_S = 20.0  # beyond what training may take to end: its being killed, and the rest of a host
_ANSWER_S = 10.0
_NODE_END_S = 10.0
_FAILURE_CHARACTERS = 1024  # of which SageMaker makes the job's FailureReason


class Host:
    """One host of a run: a member, and on the first host the leader too.

    Args:
        cluster: who is here.
        settings: how the run is launched.
        trust: how the hosts know one another.
        environment: of what starts here.
        command: the training script and its arguments.
        directory: a private one.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: LaunchSettings,
        trust: Trust,
        environment: Mapping[str, str],
        command: Sequence[str],
        directory: Path,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._trust = trust
        self._environment = environment
        self._command = command
        self._directory = directory
        loop = asyncio.get_running_loop()
        self._stop: asyncio.Future[ExitStatus] = loop.create_future()
        self._orders = {name: loop.create_future() for name in ("join", "ready")}
        self._address = ""
        self._channel: Channel | None = None
        self._started: list[tuple[Program, float]] = []

    async def run(self) -> ExitStatus:
        """Do this host's part until the run ends; nothing that was started is left by then."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)
        try:
            self._address = await race(self._own_address(), self._stopped())
        except RunFailedError as error:
            return error.status
        return await (self._lead() if self._cluster.leads else self._take_part())

    def _on_signal(self, number: signal.Signals) -> None:
        if not self._stop.done():
            name = signal.Signals(number).name
            _log.warning("%s: the run is to end", name)
            reason = f"{self._cluster.current} received {name}"
            self._stop.set_result(ExitStatus(EXIT_SIGNAL + number, reason))

    async def _stopped(self) -> NoReturn:
        status = await asyncio.shield(self._stop)
        raise RunFailedError(status.code, status.reason)

    async def _own_address(self) -> str:
        own = self._cluster.current
        address = await address_of(own, self._settings.start_wait_s)
        if is_loopback(address) and not self._cluster.on_loopback and len(self._cluster.hosts) > 1:
            msg = (
                f"{own} is {address} on {own} itself, where the other hosts do not reach it: name hosts by "
                "their addresses, or mend /etc/hosts"
            )
            raise RunFailedError(EXIT_WRONG_SETTINGS, msg)
        return address

    # The member, which every host is.

    async def _take_part(self) -> ExitStatus:
        try:
            return await self._until_the_end()
        except RunFailedError as error:
            return error.status
        finally:
            for program, wait_s in reversed(self._started):
                await program.end(wait_s)
            if self._channel is not None:
                await self._channel.close()  # so the leader knows that this host has ended its own

    async def _until_the_end(self) -> ExitStatus:
        channel = self._channel = await race(self._connect(), self._stopped())
        hearing = asyncio.get_running_loop().create_task(self._hear(channel))
        try:
            return await race(asyncio.shield(hearing), self._stopped(), self._work(channel))
        except RunFailedError as error:
            if hearing.done():
                raise
            _log.error("%s", error)
            channel.say(failed=error.status.reason, code=error.status.code)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ANSWER_S):
                    return await asyncio.shield(hearing)
            raise
        finally:
            hearing.cancel()

    async def _connect(self) -> Channel:
        return await connect(
            self._cluster.leader,
            self._settings.control_port,
            own=self._cluster.current,
            trust=self._trust,
            silence_s=self._settings.silence_s,
            wait_s=self._settings.start_wait_s,
            terms=terms_of(self._cluster, self._settings, self._environment),
        )

    async def _hear(self, channel: Channel) -> ExitStatus:
        """Take the leader's orders until it says ``end``."""
        while True:
            try:
                message = await channel.hear()
            except ChannelLostError as error:
                msg = f"the leader {self._cluster.leader} is lost: it {error}"
                raise RunFailedError(EXIT_LEADER_LOST, msg) from error
            for name in message.keys() & self._orders.keys():
                if not self._orders[name].done():
                    self._orders[name].set_result(message)
            if "end" in message:
                code = message["end"] if isinstance(message["end"], int) else EXIT_SERVICE_FAILED
                return ExitStatus(code, str(message.get("reason", "")))

    async def _work(self, channel: Channel) -> ExitStatus:
        """This host's work; what goes wrong in it becomes a reason for all, whatever it is."""
        try:
            cpus = function_cpus(self._cluster, self._settings, self._environment)  # refuses wrong settings
            keeping = await self._join(cpus)
            return await race(self._train(channel), *keeping)
        except RunFailedError:
            raise
        except ConfigError as error:
            msg = f"{self._cluster.current}: {error}"
            raise RunFailedError(EXIT_WRONG_SETTINGS, msg) from error
        except Exception as error:
            _log.exception("this host cannot do its part")
            msg = f"{self._cluster.current} cannot do its part: {error!r}"
            raise RunFailedError(EXIT_SERVICE_FAILED, msg) from error

    async def _join(self, cpus: int) -> list[Any]:
        """Start the node of Ray that this host brings, if any; what keeps it alive."""
        order = await asyncio.shield(self._orders["join"])
        head = str(order.get("ray", ""))
        if not head or not cpus or self._cluster.leads:
            return []
        token = ray_token(self._cluster, self._trust, str(order.get("ray_salt", "")))
        environment = ray_environment(self._environment, token)
        wait_s = self._settings.start_wait_s
        node = ray_service(head, self._address, cpus, environment, self._directory, wait_s=wait_s)
        self._started.append((node.program, _NODE_END_S))
        await node.start()
        return [node.keep()]

    async def _train(self, channel: Channel) -> NoReturn:
        order = await asyncio.shield(self._orders["ready"])
        if self._cluster.trains:
            command, environment = training_command(
                self._cluster,
                self._settings,
                self._environment,
                self._command,
                address=self._address,
                coordinator=str(order.get("coordinator", "")),
                run_id=str(order.get("run_id", "")),
            )
            training = Program("training", command, environment, quiet=False)
            self._started.append((training, self._settings.stop_wait_s))
            await training.start()
            code = await training.ended()
            _log.log(logging.ERROR if code else logging.INFO, "%s", training.how_it_ended(code))
            channel.say(done=code)
        await asyncio.Event().wait()
        raise AssertionError

    # The leader, which one host is beside that.

    async def _lead(self) -> ExitStatus:
        settings = self._settings
        leader = Leader(
            self._cluster,
            self._trust,
            silence_s=settings.silence_s,
            lost_data_hosts=settings.lost_data_hosts,
            terms=terms_of(self._cluster, self._settings, self._environment),
        )
        salt = secrets.token_hex(32)
        run_id = self._environment.get("TRAINING_JOB_NAME", "") or secrets.token_hex(8)
        services = LeaderServices(
            self._cluster,
            settings,
            self._environment,
            self._directory,
            address=self._address,
            run_id=run_id,
            ray_token=ray_token(self._cluster, self._trust, salt),
        )
        member = asyncio.get_running_loop().create_task(self._take_part())
        try:
            status = await self._outcome(leader, services, run_id, salt, member)
            if status.code:
                _log.error("the run ends with exit code %d: %s", status.code, status.reason)
            await leader.end(status, settings.stop_wait_s + _MARGIN_S)
        finally:
            member.cancel()
            try:
                [own] = await asyncio.gather(member, return_exceptions=True)
                if isinstance(own, Exception):
                    _log.error("this host's own part ended with %r", own)
                await leader.close()
            finally:
                await services.end()
        return status

    async def _outcome(
        self,
        leader: Leader,
        services: LeaderServices,
        run_id: str,
        salt: str,
        member: asyncio.Task[ExitStatus],
    ) -> ExitStatus:
        try:
            await leader.open(self._address, self._settings.control_port)
            # Its own member may end before it has a channel on which to say so.
            starting = self._start_run(leader, services, run_id, salt)
            return await race(leader.outcome(), starting, services.keep(), asyncio.shield(member))
        except RunFailedError as error:
            return error.status
        except ConfigError as error:
            return ExitStatus(EXIT_WRONG_SETTINGS, str(error))

    async def _start_run(self, leader: Leader, services: LeaderServices, run_id: str, salt: str) -> NoReturn:
        """Bring the run to where training begins."""
        await services.start_first()
        await leader.all_here(self._settings.start_wait_s)
        for_others = {"ray_salt": salt} if len(self._cluster.hosts) > 1 else {}
        leader.tell(join=1, ray=services.ray, **for_others)
        await services.start_coordinator()
        _log.info("all is ready: %s", services.coordinator)
        leader.tell(ready=1, coordinator=services.coordinator, run_id=run_id)
        await asyncio.Event().wait()
        raise AssertionError


async def run_host(
    cluster: Cluster, settings: LaunchSettings, environment: Mapping[str, str], command: Sequence[str]
) -> ExitStatus:
    """Do this host's part until the run ends.

    Raises:
        ConfigError: settings cannot be used; nothing was started.
    """
    insecure = settings.insecure or insecure_in(environment)
    own_cache = not (settings.cache or settings.coordinator)
    check_trust(cluster, environment, insecure=insecure, own_cache=own_cache, ray=settings.own_ray)
    own = {**environment, "SUPER_INSECURE": "1"} if insecure else dict(environment)
    directory = Path(tempfile.mkdtemp(prefix="super-l-"))  # short: socket paths have 107 bytes
    try:
        trust = trust_of(cluster, own, directory)
        return await Host(cluster, settings, trust, own, command, directory).run()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _run(parsed: argparse.Namespace, environment: Mapping[str, str]) -> ExitStatus:
    try:
        settings = settings_of(parsed)
        cluster = cluster_of(
            parsed.data_hosts,
            parsed.training_hosts,
            parsed.host or environment.get("SM_CURRENT_HOST", ""),
            environment,
            Path(parsed.config_dir),
            data_group=parsed.data_group,
            training_group=parsed.training_group,
        )
        command = [*parsed.command, *script_arguments(environment, Path(parsed.config_dir))]
        form = f"%(asctime)s launcher {cluster.current}: %(message)s"
        logging.basicConfig(level=parsed.log_level, format=form, stream=sys.stderr, force=True)
        keep_secrets_out_of_logs()
        data, training = ", ".join(cluster.data_hosts) or "none", ", ".join(cluster.training_hosts)
        _log.info("data hosts: %s; training hosts: %s; the leader is %s", data, training, cluster.leader)
        return asyncio.run(run_host(cluster, settings, environment, command))
    except ConfigError as error:
        return ExitStatus(EXIT_WRONG_SETTINGS, str(error))
    except SuperError as error:
        return ExitStatus(1, str(error))
    except Exception as error:  # noqa: BLE001  # its reason belongs where people look for reasons
        traceback.print_exc()
        return ExitStatus(EXIT_SERVICE_FAILED, f"the launcher itself failed: {error!r}")


def _write_failure(named: str, reason: str) -> None:
    file = Path(named or FAILURE_FILE)
    if not named and not file.parent.is_dir():
        return
    try:
        file.write_text(reason[:_FAILURE_CHARACTERS] + "\n", encoding="utf-8")
    except OSError as error:
        sys.stderr.write(f"infra.launcher: the reason cannot be written to {file}: {error}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and do this host's part; the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        parsed = parse(arguments)
    except ConfigError as error:
        status = ExitStatus(EXIT_WRONG_SETTINGS, f"{error}; see --help")
        finder = argparse.ArgumentParser(add_help=False, exit_on_error=False)
        finder.add_argument("--failure-file", default="", nargs="?", const="")
        parsed, _ = finder.parse_known_args(list(arguments))
    else:
        status = _run(parsed, os.environ)
    if status.code:
        _write_failure(parsed.failure_file, status.reason)
        sys.stderr.write(f"infra.launcher: {status.reason}\n")
    return status.code


if __name__ == "__main__":
    sys.exit(main())
