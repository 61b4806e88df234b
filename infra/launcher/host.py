"""One host of a run, from its start to its exit code: the member that every host is, and on the leader what
leads.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from infra.launcher.addresses import address_of
from infra.launcher.agreement import terms_of
from infra.launcher.leader import Leader
from infra.launcher.member import Member
from infra.launcher.racing import race
from infra.launcher.ray_auth import run_token
from infra.launcher.services import Services
from infra.launcher.trust import check_trust, trust_of
from infra.launcher.verdicts import EXIT_SIGNAL, EXIT_WRONG_SETTINGS, RunFailedError, Verdict
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.loopback import insecure_in, is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from infra.launcher.cluster import Cluster
    from infra.launcher.settings import LaunchSettings
    from infra.launcher.trust import Trust

__all__ = ["run_host"]

_log = logging.getLogger(__name__)

_MARGIN_S = 20.0  # beyond what training may take to end: its being killed, and the rest of a host


async def run_host(
    cluster: Cluster, settings: LaunchSettings, environment: Mapping[str, str], command: Sequence[str]
) -> Verdict:
    """Do this host's part until the run ends; nothing that was started is left.

    Raises:
        ConfigError: settings cannot be used; nothing was started.
    """
    insecure = settings.insecure or insecure_in(environment)
    check_trust(
        cluster,
        environment,
        insecure=insecure,
        own_cache=not (settings.cache or settings.coordinator),
        ray=settings.own_ray,
    )
    own = {**environment, "SUPER_INSECURE": "1"} if insecure else dict(environment)
    directory = Path(tempfile.mkdtemp(prefix="super-l-"))  # short: socket paths have 107 bytes
    try:
        trust = trust_of(cluster, own, directory)
        return await _Host(cluster, settings, trust, own, command, directory).run()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class _Host:
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
        self._stop: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()

    async def run(self) -> Verdict:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            address = await race(self._address(), self._stopped())
        except RunFailedError as error:
            return error.verdict
        member = Member(
            self._cluster,
            self._settings,
            self._trust,
            self._environment,
            self._command,
            self._directory,
            address=address,
            stop=self._stop,
        )
        if not self._cluster.leads:
            return await member.run()
        return await self._lead_and_be(member, address)

    def _on_signal(self, number: signal.Signals) -> None:
        if not self._stop.done():
            name = signal.Signals(number).name
            _log.warning("%s: the run is to end", name)
            self._stop.set_result(
                Verdict(EXIT_SIGNAL + number, f"{self._cluster.current} was told to end by {name}")
            )

    async def _stopped(self) -> str:
        verdict = await asyncio.shield(self._stop)
        raise RunFailedError(verdict.code, verdict.reason)

    async def _address(self) -> str:
        own = self._cluster.current
        address = await address_of(own, self._settings.start_wait_s)
        if is_loopback(address) and not self._cluster.on_loopback and len(self._cluster.hosts) > 1:
            msg = (
                f"{own} is {address} on {own} itself, where the other hosts do not reach it: name hosts by "
                "their addresses, or mend /etc/hosts"
            )
            raise RunFailedError(EXIT_WRONG_SETTINGS, msg)
        return address

    async def _lead_and_be(self, member: Member, address: str) -> Verdict:
        settings = self._settings
        leader = Leader(
            self._cluster,
            self._trust,
            silence_s=settings.silence_s,
            lost_data_hosts=settings.lost_data_hosts,
            terms=terms_of(self._cluster, settings, self._environment),
        )
        run_id = self._environment.get("TRAINING_JOB_NAME", "") or secrets.token_hex(8)
        salt = secrets.token_hex(32)
        services = Services(
            self._cluster,
            settings,
            self._environment,
            self._directory,
            address=address,
            run_id=run_id,
            ray_token=run_token(self._cluster, self._trust, salt),
        )
        being = asyncio.get_running_loop().create_task(member.run())
        try:
            verdict = await self._lead(leader, services, address, (run_id, salt), being)
            if verdict.code:
                _log.error("the run ends with exit code %d: %s", verdict.code, verdict.reason)
            await leader.end(verdict, settings.stop_wait_s + _MARGIN_S)
        finally:
            being.cancel()
            try:
                await _over(being)
                await leader.close()
            finally:
                await services.end()
        return verdict

    async def _lead(
        self,
        leader: Leader,
        services: Services,
        address: str,
        run: tuple[str, str],
        being: asyncio.Task[Verdict],
    ) -> Verdict:
        try:
            await leader.open(address, self._settings.control_port)
            # Its own member may end before it has a line on which to say so.
            return await race(leader.verdict(), self._prepare(leader, services, run), self._end_of(being))
        except RunFailedError as error:
            return error.verdict
        except ConfigError as error:
            return Verdict(EXIT_WRONG_SETTINGS, str(error))

    async def _end_of(self, being: asyncio.Task[Verdict]) -> Verdict:
        return await asyncio.shield(being)

    async def _prepare(self, leader: Leader, services: Services, run: tuple[str, str]) -> Verdict:
        """Bring the run to where training begins, then keep the services."""
        return await race(self._start(leader, services, run), self._keep(services))

    async def _start(self, leader: Leader, services: Services, run: tuple[str, str]) -> Verdict:
        settings, (run_id, salt) = self._settings, run
        await services.start_first()
        await leader.all_here(settings.start_wait_s)
        told = {"ray_salt": salt} if len(self._cluster.hosts) > 1 else {}  # nobody else needs it
        leader.tell(join=1, ray=services.ray, **told)
        await leader.all_joined(settings.start_wait_s)
        await services.start_rest(self._ray_nodes(leader))
        _log.info("all is ready: %s", services.coordinator)
        leader.tell(ready=1, coordinator=services.coordinator, run_id=run_id)
        await asyncio.Event().wait()
        raise AssertionError

    async def _keep(self, services: Services) -> Verdict:
        await services.keep()
        raise AssertionError

    def _ray_nodes(self, leader: Leader) -> int:
        """How many nodes Ray is to have: the leader's, and those of the hosts that bring CPUs."""
        cluster = self._cluster
        trainers_bring = bool(self._settings.trainer_cpus) or not cluster.data_hosts
        bring = cluster.hosts if trainers_bring else cluster.data_hosts
        return len({cluster.leader, *bring} - leader.lost)


async def _over(being: asyncio.Task[Verdict]) -> None:
    """Until this host's own part is over; how, no longer matters."""
    [outcome] = await asyncio.gather(being, return_exceptions=True)
    if isinstance(outcome, Exception):
        _log.error("this host's own part ended with %r", outcome)
