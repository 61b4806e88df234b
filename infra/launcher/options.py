"""The launcher's options: each is declared once, with its default and its help, and checked when made.

``submit`` and ``local`` parse what they pass on with the same parser. Who the hosts are is
:mod:`infra.launcher.cluster`'s.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NoReturn

from infra.launcher.cluster import CONFIG_DIRECTORY, DATA_GROUP, TRAINING_GROUP
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.sizes import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FAILURE_FILE", "SPARE", "LaunchSettings", "OptionParser", "parse", "settings_of"]

SPARE = -1
"""All the CPUs that the ranks of a host leave."""

FAILURE_FILE = "/opt/ml/output/failure"
"""Where SageMaker looks for the reason of a failure."""

_PORT_MAX = 65_535
_WEEK_S = 7 * 86_400


class OptionParser(argparse.ArgumentParser):
    """Raises :class:`ConfigError` where argparse would end the process."""

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments."""
        raise ConfigError(message)


def _bytes(text: str) -> int:
    try:
        return parse_bytes(text, "--cache-bytes")
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _cpus(text: str) -> int:
    if text != "spare" and not text.isdecimal():
        msg = f"a number of CPUs, or spare; not {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return SPARE if text == "spare" else int(text)


def _option(default: Any, words: str, **of_argument: Any) -> Any:
    return field(default=default, metadata={"help": words, **of_argument})


@dataclass(frozen=True, slots=True)
class LaunchSettings:
    """How a run is launched, the same on every host. Each field is an option of the command line."""

    executor: str = _option("ray", "how functions run: ray (default), local, lambda, or several")
    coordinator: str = _option("", "a coordinator that runs already; then no cache and no Ray are started")
    cache: str = _option("", "a cache that runs already: rediss://host:port")
    cache_bytes: int = _option(
        0, "memory of the cache, such as 64gb (half of what is available)", type=_bytes
    )
    data_cpus: int = _option(0, "CPUs of a data host for functions (all)")
    trainer_cpus: int = _option(
        0, "CPUs of a training host for functions: a number, or spare (0)", type=_cpus
    )
    ranks_per_host: int = _option(0, "ranks on a training host (one for each GPU)")
    torchrun: bool = _option(
        True,  # a default
        "run the command itself, with MASTER_ADDR, MASTER_PORT, NNODES, NODE_RANK and NPROC_PER_NODE",
    )
    control_port: int = _option(50050, "port of the launchers' own connections (50050)")
    coordinator_port: int = _option(50051, "port of the coordinator (50051)")
    cache_port: int = _option(50052, "port of the cache (50052)")
    ray_port: int = _option(50053, "port of Ray's head (50053)")
    master_port: int = _option(29500, "port of torchrun's rendezvous, on the first training host (29500)")
    lost_data_hosts: int = _option(
        0, "so many data hosts, the first not counted, may be lost before the run ends (0)"
    )
    start_wait_s: float = _option(600.0, "seconds for hosts and services to appear (600)")
    stop_wait_s: float = _option(75.0, "seconds for training to end when it is asked to (75)")
    silence_s: float = _option(30.0, "a host that is silent for so many seconds is lost (30)")
    insecure: bool = _option(
        False,  # a default
        "no TLS and no tokens beyond this machine: for networks that nobody else can reach",
    )

    def __post_init__(self) -> None:
        ports = {
            name: port for name in self.__slots__ if name.endswith("_port") for port in [getattr(self, name)]
        }
        for name, port in ports.items():
            if not 0 < port <= _PORT_MAX:
                msg = f"{name} is from 1 to {_PORT_MAX}; not {port}"
                raise ConfigError(msg)
        if len(set(ports.values())) < len(ports):
            msg = f"each port is another; not {', '.join(f'{name}={port}' for name, port in ports.items())}"
            raise ConfigError(msg)
        if self.coordinator and self.cache:
            msg = "a coordinator that runs already has its own cache: name --coordinator or --cache"
            raise ConfigError(msg)
        for name in ("data_cpus", "ranks_per_host", "lost_data_hosts", "cache_bytes"):
            if getattr(self, name) < 0:
                msg = f"{name} is not negative; not {getattr(self, name)}"
                raise ConfigError(msg)
        for name in ("start_wait_s", "stop_wait_s", "silence_s"):
            if not 0 < getattr(self, name) < _WEEK_S:
                msg = f"{name} is above 0 and below a week; not {getattr(self, name)}"
                raise ConfigError(msg)

    @property
    def own_ray(self) -> bool:
        """Whether the launcher starts Ray."""
        executors = [name.strip() for name in self.executor.split(",")]
        return "ray" in executors and not self.coordinator


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the launcher's command line.

    Raises:
        ConfigError: an argument does not fit.
    """
    return launcher_parser().parse_args(arguments)


def settings_of(parsed: argparse.Namespace) -> LaunchSettings:
    """The settings among the parsed arguments.

    Raises:
        ConfigError: they do not fit together.
    """
    return LaunchSettings(**{name: getattr(parsed, name) for name in LaunchSettings.__slots__})


def launcher_parser() -> OptionParser:
    """The parser of ``python -m infra.launcher``."""
    parser = OptionParser(
        prog="python -m infra.launcher",
        usage="%(prog)s [options] -- train.py [arguments]",
        description="Run one host's part of a training run with SUPER.",
    )
    hosts = parser.add_argument_group("hosts (none of these on SageMaker)")
    hosts.add_argument("--data-hosts", default="", help="hosts that preprocess, separated by commas")
    hosts.add_argument("--training-hosts", default="", help="hosts that train, in the order of their ranks")
    hosts.add_argument("--host", default="", help="which of them this one is (SM_CURRENT_HOST)")
    hosts.add_argument("--data-group", default=DATA_GROUP, help="SageMaker's instance group of data hosts")
    hosts.add_argument("--training-group", default=TRAINING_GROUP, help="the one of training hosts")
    for entry in fields(LaunchSettings):
        flag = f"--{entry.name.replace('_', '-')}"
        more = dict(entry.metadata)
        if entry.type == "bool":
            negated = f"--no-{entry.name}" if entry.default else flag
            parser.add_argument(
                negated,
                dest=entry.name,
                action="store_const",
                default=entry.default,
                const=not entry.default,
                **more,
            )
        else:
            parser.add_argument(flag, default=entry.default, **{"type": type(entry.default), **more})
    parser.add_argument(
        "--config-dir",
        default=CONFIG_DIRECTORY,
        help=f"where SageMaker describes the job ({CONFIG_DIRECTORY})",
    )
    parser.add_argument(
        "--failure-file",
        default="",
        help=f"where the reason of a failure goes ({FAILURE_FILE}, if that folder exists)",
    )
    parser.add_argument(
        "--log-level",
        default="INFO",
        type=str.upper,
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
        help="DEBUG, INFO, WARNING or ERROR (INFO)",
    )
    parser.add_argument("command", nargs="+", help="the training script and its arguments, after --")
    return parser
