"""``python -m infra.launcher.local [options] -- train.py [arguments]``: all hosts of a run on this machine.

It starts the launcher once for each host, on 127.0.0.2, 127.0.0.3 and so on, passes on what they print with
the host's name before it, and ends with the run's exit code, when all that it has started has ended. Use it
to try a run of several hosts on a laptop, and to measure what more hosts bring on one machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from infra.launcher import EXIT_SIGNAL, EXIT_WRONG_SETTINGS
from infra.launcher.processes import Program
from infra.launcher.settings import OptionParser, parse
from infra.launcher.training import visible_gpus
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from infra.launcher.settings import LaunchSettings

__all__ = ["LocalHost", "local_hosts", "main", "parser"]

_PYTHON = [sys.executable, *(["-P"] if sys.flags.safe_path else [])]  # finds modules where this one does
_HOSTS_MAX = 200
_FIRST = 2  # 127.0.0.1 is, to Ray, the machine's address beyond loopback
_PORTS = range(20_000, 30_000)  # below those that Linux gives to clients
_MARGIN_S = 40.0  # beyond what training may take to end: what a host ends after it
_COLUMNS = 120  # of tables, where no terminal says its width


@dataclass(frozen=True, slots=True)
class LocalHost:
    """One host of such a run.

    Attributes:
        name: what it is and its address, for people.
        cores: the cores that all its processes are held to; none for the machine's.
        gpus: its GPUs, as ``CUDA_VISIBLE_DEVICES`` has them; ``None`` for the machine's.
        threads: of each of its numeric libraries, where hosts that train share cores; 0 for their own choice.
    """

    name: str
    cores: tuple[int, ...] = ()
    gpus: tuple[str, ...] | None = None
    threads: int = 0

    @property
    def address(self) -> str:
        """By which the others reach it."""
        return self.name.split()[-1]


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

    Raises:
        ConfigError: there are no such hosts, or fewer cores.
    """
    data, training, own = wanted.data_hosts, wanted.training_hosts, wanted.training_cores
    if data < 0 or training < 1 or data + training > _HOSTS_MAX:
        msg = f"at least one host trains, and there are at most {_HOSTS_MAX}; not {training} beside {data}"
        raise ConfigError(msg)
    each = [own] * training + [wanted.data_cores] * data
    divided, shared = any(each), not all(each)
    if divided and (min(each) < 0 or sum(each) + shared > len(cores)):
        others = ", and one at least for the others" if shared else ""
        msg = (
            f"{sum(each)} cores are asked for ({training} x --training-cores {own}, {data} x --data-cores "
            f"{wanted.data_cores}){others}; {len(cores)} can be used here: ask for fewer hosts or cores"
        )
        raise ConfigError(msg)
    ends = [sum(each[: number + 1]) for number in range(len(each))]
    rest = tuple(cores[ends[-1] :]) if divided else ()
    held = [tuple(cores[end - count : end]) or rest for count, end in zip(each, ends, strict=True)]
    # As torchrun does for the ranks of one host: threads that wait for one another by spinning want cores.
    threads = max(1, len(rest or cores) // training) if training > 1 and not own else 0
    gpus_each = len(gpus) // training if training > 1 else 0
    hosts = [LocalHost(f"data 127.0.0.{_FIRST + n}", held[training + n]) for n in range(data)]
    for n in range(training):
        share = tuple(gpus[n * gpus_each : (n + 1) * gpus_each]) if gpus_each else None
        hosts.append(LocalHost(f"training 127.0.0.{_FIRST + data + n}", held[n], share, threads))
    return tuple(hosts)


def free_ports(names: Sequence[str]) -> dict[str, int]:
    """A port for each name, free a moment ago on every address."""
    with contextlib.ExitStack() as bound:
        found: list[int] = []
        for port in random.sample(_PORTS, 20 * len(names)):
            with contextlib.suppress(OSError):
                bound.enter_context(socket.socket()).bind(("", port))
                found.append(port)
    return dict(zip(names, found, strict=False))


async def _run(hosts: Sequence[LocalHost], options: Sequence[str], end_wait_s: float) -> int:
    """Run the hosts until all have ended, which they do together; the run's exit code."""
    programs = [Program(host.name, _command(host, options), _environment(host)) for host in hosts]
    asked: list[asyncio.Task[None]] = []
    signals: list[signal.Signals] = []

    def on_signal(number: signal.Signals) -> None:
        signals.append(number)
        wait_s = end_wait_s if len(signals) == 1 else 0.0  # who asks twice does not wait
        asked.extend(asyncio.ensure_future(program.end(wait_s)) for program in programs)

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
    for program in programs:
        await program.start()
    codes = await asyncio.gather(*(program.ended() for program in programs))
    await asyncio.gather(*asked)
    return EXIT_SIGNAL + signals[0] if signals else next(filter(None, codes), 0)


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
    if "--" not in words:
        raise ConfigError("the training command comes after --, as in: -- train.py --epochs 3")
    command = words[words.index("--") :]
    wanted, others = parser().parse_known_args(words[: -len(command)])
    hosts = local_hosts(wanted, sorted(os.sched_getaffinity(0)), visible_gpus(os.environ))
    ports = free_ports(list(parse(["-"]).ports()))
    options = [
        f"--data-hosts={','.join(host.address for host in hosts[: wanted.data_hosts])}",
        f"--training-hosts={','.join(host.address for host in hosts[wanted.data_hosts :])}",
        *(f"--{name.replace('_', '-')}={port}" for name, port in ports.items()),
        *others,  # the last word is the user's
        *command,
    ]
    settings = parse(options)
    if settings.host:
        raise ConfigError("--host is for a launcher of one host; this one starts them all")
    return hosts, settings, options


def main(argv: Sequence[str] | None = None) -> int:
    """Run all hosts; the run's exit code."""
    try:
        hosts, settings, options = _prepared(sys.argv[1:] if argv is None else argv)
    except ConfigError as error:
        sys.stderr.write(f"infra.launcher.local: {error}; see --help\n")
        return EXIT_WRONG_SETTINGS
    return asyncio.run(_run(hosts, options, settings.stop_wait_s + _MARGIN_S))


if __name__ == "__main__":
    sys.exit(main())
