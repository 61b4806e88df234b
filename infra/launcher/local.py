"""``python -m infra.launcher.local [options] -- train.py [arguments]``: all hosts of a run on this machine.

It starts the launcher once for each host, as processes on 127.0.0.2, 127.0.0.3 and so on, passes on what they
print with the host's name before it, and ends with the run's exit code. All that it has started has ended by
then. For trying a run of several hosts on a laptop, and for measuring what more hosts bring on one machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

from infra.launcher.one_machine import confined_to, free_ports, local_hosts, usable_core_numbers
from infra.launcher.options import parse, settings_of
from infra.launcher.processes import Child
from infra.launcher.racing import race
from infra.launcher.training import visible_gpus
from infra.launcher.verdicts import EXIT_SIGNAL, EXIT_WRONG_SETTINGS
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from infra.launcher.one_machine import LocalHost
    from infra.launcher.settings import LaunchSettings

__all__ = ["main"]

_PYTHON = [sys.executable, *(["-P"] if sys.flags.safe_path else [])]  # finds modules where this one does
_OWN_END_S = 5.0  # for hosts to end by themselves once one has failed
_MARGIN_S = 40.0  # beyond what training may take to end: what a host ends after it
_COLUMNS = 120  # of tables, where no terminal says its width


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m infra.launcher.local",
        usage="%(prog)s [options] [options of infra.launcher] -- train.py [arguments]",
        description="Run all hosts of a training run on this machine.",
        epilog="All other options are the launcher's: python -m infra.launcher --help. Ports are free ones.",
        allow_abbrev=False,
    )
    parser.add_argument("--data-hosts", type=int, default=0, help="how many hosts preprocess (0)")
    parser.add_argument("--training-hosts", type=int, default=1, help="how many hosts train (1)")
    parser.add_argument(
        "--training-cores",
        type=int,
        default=0,
        help="cores that each training host is held to; else they share what the data hosts' cores leave",
    )
    parser.add_argument(
        "--data-cores",
        type=int,
        default=0,
        help="cores that each data host is held to; else they share what the training hosts' cores leave",
    )
    return parser


class _Run:
    """The hosts of one run, from their start to the run's exit code."""

    def __init__(self, hosts: Sequence[LocalHost], settings: LaunchSettings, options: Sequence[str]) -> None:
        self._hosts = hosts
        self._settings = settings
        self._children = [
            Child(
                host.name,
                [*_PYTHON, "-m", "infra.launcher", "--host", host.address, *options],
                _environment(host, os.environ),
            )
            for host in hosts
        ]
        self._signals: list[signal.Signals] = []
        self._signalled = asyncio.Event()
        self._ending: list[asyncio.Task[None]] = []

    async def run(self) -> int:
        """Start them, and wait until all have ended."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            for host, child in zip(self._hosts, self._children, strict=True):
                with confined_to(host.cores):
                    await child.start()
            code = await race(self._outcome(), self._stopped())
            if code and not self._signals:
                endings = [loop.create_task(child.ended()) for child in self._children]
                await race(_all(endings), self._stopped(), asyncio.sleep(_OWN_END_S, 0))
        finally:
            await self._end(self._settings.stop_wait_s + _MARGIN_S)
            await asyncio.gather(*self._ending)
        return code

    def _on_signal(self, number: signal.Signals) -> None:
        self._signals.append(number)
        self._signalled.set()
        if len(self._signals) > 1:  # who asks twice will not wait
            self._ending.append(asyncio.get_running_loop().create_task(self._end(0.0)))

    async def _stopped(self) -> int:
        await self._signalled.wait()
        return EXIT_SIGNAL + self._signals[0]

    async def _outcome(self) -> int:
        """0 once all have ended well, or the exit code of the first without which the run cannot go on."""
        may_be_lost = self._settings.lost_data_hosts
        for ending in asyncio.as_completed([self._ended(n) for n in range(len(self._hosts))]):
            number, code = await ending
            if not code:
                continue
            if number and not self._hosts[number].trains and may_be_lost:
                may_be_lost -= 1
                continue
            sys.stderr.write(f"infra.launcher.local: exit code {code} of {self._hosts[number].name}\n")
            return code
        return 0

    async def _ended(self, number: int) -> tuple[int, int]:
        return number, await self._children[number].ended()

    async def _end(self, wait_s: float) -> None:
        await asyncio.gather(*(child.end(wait_s) for child in self._children))


async def _all(endings: Sequence[asyncio.Task[int]]) -> int:
    await asyncio.wait(endings)
    return 0


def _environment(host: LocalHost, environment: Mapping[str, str]) -> dict[str, str]:
    own = dict(environment)
    own.setdefault("SUPER_RAY_SHARED_FILES", "1")  # one machine's hosts see the same files
    own.setdefault("PYTHONUNBUFFERED", "1")  # else lines come late through a pipe
    width = shutil.get_terminal_size((_COLUMNS, 0)).columns - len(f"[{host.name}] ")
    own.setdefault("COLUMNS", str(max(40, width)))
    if host.threads:
        own.setdefault("OMP_NUM_THREADS", str(host.threads))
    if host.gpus is not None:
        own["CUDA_VISIBLE_DEVICES"] = ",".join(host.gpus)
    return own


def _prepared(words: Sequence[str]) -> tuple[tuple[LocalHost, ...], LaunchSettings, list[str]]:
    """The hosts, the settings of all of them, and the options of each launcher but ``--host``."""
    before = list(words[: words.index("--")]) if "--" in words else list(words)
    given, others = _parser().parse_known_args(before)
    if "--" not in words:
        msg = "the training command comes after --, as in: -- train.py --epochs 3"
        raise ConfigError(msg)
    hosts = local_hosts(
        given.data_hosts,
        given.training_hosts,
        data_cores=given.data_cores,
        training_cores=given.training_cores,
        cores=usable_core_numbers(),
        gpus=visible_gpus(os.environ),
    )
    options = [
        f"--data-hosts={','.join(host.address for host in hosts if not host.trains)}",
        f"--training-hosts={','.join(host.address for host in hosts if host.trains)}",
        *(f"--{name.replace('_', '-')}={port}" for name, port in free_ports(hosts).items()),
        *others,  # the last word is the user's
        *words[len(before) :],
    ]
    parsed = parse(options)
    if parsed.host:
        msg = "--host is for a launcher of one host; this one starts them all"
        raise ConfigError(msg)
    return hosts, settings_of(parsed), options


async def _run(hosts: Sequence[LocalHost], settings: LaunchSettings, options: Sequence[str]) -> int:
    return await _Run(hosts, settings, options).run()


def main(argv: Sequence[str] | None = None) -> int:
    """Run all hosts; the run's exit code."""
    try:
        hosts, settings, options = _prepared(sys.argv[1:] if argv is None else argv)
    except ConfigError as error:
        sys.stderr.write(f"infra.launcher.local: {error}; see --help\n")
        return EXIT_WRONG_SETTINGS
    return asyncio.run(_run(hosts, settings, options))


if __name__ == "__main__":
    sys.exit(main())
