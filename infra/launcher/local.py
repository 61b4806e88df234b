"""``python -m infra.launcher.local [options] -- train.py [arguments]``: all hosts of a run on this machine.

It starts the launcher once for each host, on 127.0.0.2, 127.0.0.3 and so on, passes on what they print with
the host's name before it, and ends with the run's exit code, when all that it has started has ended. Use it
to try a run of several hosts on a laptop, and to measure what more hosts bring on one machine.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
import signal
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from infra.launcher import EXIT_SIGNAL, EXIT_WRONG_SETTINGS
from infra.launcher.options import LaunchSettings, OptionParser, parse, settings_of
from infra.launcher.processes import Program, race
from infra.launcher.training import visible_gpus
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

__all__ = ["LocalHost", "free_ports", "local_hosts", "main", "parser"]

_PYTHON = [sys.executable, *(["-P"] if sys.flags.safe_path else [])]  # finds modules where this one does
_HOSTS_MAX = 200
_FIRST = 2  # 127.0.0.1 is, to Ray, the machine's address beyond loopback
_PORTS = range(20_000, 30_000)  # below those that Linux and macOS give to clients
_OWN_END_S = 5.0  # for hosts to end by themselves once one has failed
_MARGIN_S = 40.0  # beyond what training may take to end: what a host ends after it
_COLUMNS = 120  # of tables, where no terminal says its width


@dataclass(frozen=True, slots=True)
class LocalHost:
    """One host of such a run.

    Attributes:
        address: by which the others reach it.
        trains: whether it trains; else it preprocesses.
        cores: the cores that all its processes are held to; none for the machine's.
        gpus: its GPUs, as ``CUDA_VISIBLE_DEVICES`` has them; ``None`` for the machine's.
        threads: of each of its numeric libraries, where hosts that train share cores; 0 for their own choice.
    """

    address: str
    trains: bool
    cores: tuple[int, ...] = ()
    gpus: tuple[str, ...] | None = None
    threads: int = 0

    @property
    def name(self) -> str:
        """What it is, for people."""
        return f"{'training' if self.trains else 'data'} {self.address}"


def parser() -> OptionParser:
    """The options of this command's own."""
    made = OptionParser(
        prog="python -m infra.launcher.local",
        usage="%(prog)s [options] [options of infra.launcher] -- train.py [arguments]",
        description="Run all hosts of a training run on this machine.",
        epilog="All other options are the launcher's: python -m infra.launcher --help. Ports are free ones.",
        allow_abbrev=False,
    )
    shares = "cores that each {} host is held to; else they share what the other hosts' cores leave"
    made.add_argument("--data-hosts", type=int, default=0, help="how many hosts preprocess (0)")
    made.add_argument("--training-hosts", type=int, default=1, help="how many hosts train (1)")
    made.add_argument("--training-cores", type=int, default=0, help=shares.format("training"))
    made.add_argument("--data-cores", type=int, default=0, help=shares.format("data"))
    return made


def local_hosts(
    wanted: argparse.Namespace, cores: Sequence[int], gpus: Sequence[str]
) -> tuple[LocalHost, ...]:
    """The hosts, those that preprocess first.

    Hosts have their own cores where an option says how many; the others share what these leave. GPUs are
    divided among the training hosts where each can have one.

    Args:
        wanted: what :func:`parser` gives.
        cores: the machine's; none where it holds no process to cores.
        gpus: the machine's.

    Raises:
        ConfigError: there are no such hosts, or fewer cores.
    """
    data, training = wanted.data_hosts, wanted.training_hosts
    if data < 0 or training < 1 or data + training > _HOSTS_MAX:
        msg = f"at least one host trains, and there are at most {_HOSTS_MAX}; not {training} beside {data}"
        raise ConfigError(msg)
    shared = _check_cores(wanted, len(cores))
    each = [wanted.training_cores] * training + [wanted.data_cores] * data
    ends = [sum(each[: number + 1]) for number in range(len(each))]
    rest = tuple(cores[ends[-1] :]) if shared else ()
    own = [tuple(cores[end - count : end]) or rest for count, end in zip(each, ends, strict=True)]
    addresses = [f"127.0.0.{_FIRST + number}" for number in range(data + training)]
    for address in addresses:
        _check_address(address)
    # As torchrun does for the ranks of one host: threads that wait for one another by spinning want cores.
    threads = max(1, len(rest or cores) // training) if training > 1 and not wanted.training_cores else 0
    gpus_each = len(gpus) // training if training > 1 else 0
    return (
        *(LocalHost(addresses[n], trains=False, cores=own[training + n]) for n in range(data)),
        *(
            LocalHost(
                addresses[data + n],
                trains=True,
                cores=own[n],
                gpus=tuple(gpus[n * gpus_each : (n + 1) * gpus_each]) if gpus_each else None,
                threads=threads,
            )
            for n in range(training)
        ),
    )


def _check_cores(wanted: argparse.Namespace, usable: int) -> bool:
    """Refuse more cores than there are; whether hosts are left that share the rest."""
    data, training = wanted.data_cores, wanted.training_cores
    if not training and not data:
        return False
    if not usable or shutil.which("taskset") is None:
        msg = "this system holds no process to cores: leave --training-cores and --data-cores out"
        raise ConfigError(msg)
    if min(training, data) < 0:
        msg = "--training-cores and --data-cores are not negative"
        raise ConfigError(msg)
    asked = wanted.training_hosts * training + wanted.data_hosts * data
    shared = not training or (wanted.data_hosts > 0 and not data)
    if asked + shared > usable:
        others = ", and one at least for the others" if shared else ""
        msg = (
            f"{asked} cores are asked for ({wanted.training_hosts} x --training-cores {training}, "
            f"{wanted.data_hosts} x --data-cores {data}){others}; {usable} can be used here: ask for fewer "
            "hosts or cores"
        )
        raise ConfigError(msg)
    return shared


def _check_address(address: str) -> None:
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            msg = f"{address} is no address of this machine; on macOS: sudo ifconfig lo0 alias {address}"
            raise ConfigError(msg) from error


def free_ports() -> dict[str, int]:
    """A port for each that the launcher wants, free a moment ago on every address, by the setting's name."""
    names = [name for name in LaunchSettings.__slots__ if name.endswith("_port")]
    found: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == len(names):
            break
    return dict(zip(names, found, strict=True))


class _Run:
    """The hosts of one run, from their start to the run's exit code."""

    def __init__(self, hosts: Sequence[LocalHost], settings: LaunchSettings, options: Sequence[str]) -> None:
        self._hosts = hosts
        self._settings = settings
        self._programs = [Program(host.name, _command(host, options), _environment(host)) for host in hosts]
        self._signals: list[signal.Signals] = []
        self._signalled = asyncio.Event()
        self._killing: list[asyncio.Task[None]] = []

    async def run(self) -> int:
        """Start them, and wait until all have ended."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            for program in self._programs:
                await program.start()
            code = await race(self._outcome(), self._stopped())
            if code and not self._signals:
                ended = asyncio.gather(*(program.ended() for program in self._programs))
                await race(ended, self._stopped(), asyncio.sleep(_OWN_END_S, 0))
        finally:
            await self._end(self._settings.stop_wait_s + _MARGIN_S)
            await asyncio.gather(*self._killing)
        return code

    def _on_signal(self, number: signal.Signals) -> None:
        self._signals.append(number)
        self._signalled.set()
        if len(self._signals) > 1:  # a second signal does not wait
            self._killing.append(asyncio.get_running_loop().create_task(self._end(0.0)))

    async def _stopped(self) -> int:
        await self._signalled.wait()
        return EXIT_SIGNAL + self._signals[0]

    async def _outcome(self) -> int:
        """0 once all have ended well, or the exit code of the first without which the run cannot go on."""
        may_be_lost = self._settings.lost_data_hosts
        for ending in asyncio.as_completed([self._ended(number) for number in range(len(self._hosts))]):
            number, code = await ending
            if code and number and not self._hosts[number].trains and may_be_lost:
                may_be_lost -= 1
            elif code:
                sys.stderr.write(f"infra.launcher.local: exit code {code} of {self._hosts[number].name}\n")
                return code
        return 0

    async def _ended(self, number: int) -> tuple[int, int]:
        return number, await self._programs[number].ended()

    async def _end(self, wait_s: float) -> None:
        await asyncio.gather(*(program.end(wait_s) for program in self._programs))


def _command(host: LocalHost, options: Sequence[str]) -> list[str]:
    """One host's launcher, held to its cores with all that it starts."""
    held = ["taskset", "-c", ",".join(map(str, host.cores))] if host.cores else []
    return [*held, *_PYTHON, "-m", "infra.launcher", "--host", host.address, *options]


def _environment(host: LocalHost) -> Mapping[str, str]:
    own = dict(os.environ)
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
    wanted, others = parser().parse_known_args(before)
    if "--" not in words:
        msg = "the training command comes after --, as in: -- train.py --epochs 3"
        raise ConfigError(msg)
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    hosts = local_hosts(wanted, cores, visible_gpus(os.environ))
    options = [
        f"--data-hosts={','.join(host.address for host in hosts if not host.trains)}",
        f"--training-hosts={','.join(host.address for host in hosts if host.trains)}",
        *(f"--{name.replace('_', '-')}={port}" for name, port in free_ports().items()),
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
