"""What the launcher may be told on its command line; ``submit`` looks here too at what it passes on."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import TYPE_CHECKING, NoReturn

from infra.launcher.cluster import DATA_GROUP, TRAINING_GROUP
from infra.launcher.settings import SPARE, LaunchSettings
from superdl.sampler.embedded.host import parse_bytes
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CONFIG", "FAILURE", "parse", "settings_of"]

CONFIG = "/opt/ml/input/config"
"""Where SageMaker tells of a job."""

FAILURE = "/opt/ml/output/failure"
"""Where SageMaker looks for the reason of a failure."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """What the arguments say.

    Raises:
        ConfigError: they do not fit.
    """
    return _parser().parse_args(arguments)


def settings_of(given: argparse.Namespace) -> LaunchSettings:
    """The settings among them.

    Raises:
        ConfigError: they do not fit together.
    """
    names = {field.name for field in fields(LaunchSettings)}
    return LaunchSettings(
        **{name: value for name, value in vars(given).items() if name in names and value is not None}
    )


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
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
    parts = parser.add_argument_group("what runs")
    parts.add_argument("--executor", help="how functions run: ray (default), local, lambda, or several")
    parts.add_argument("--coordinator", help="one that runs already; then no cache and no Ray are started")
    parts.add_argument("--cache", help="one that runs already: rediss://host:port")
    parts.add_argument("--cache-bytes", type=_bytes, help="of the cache, such as 64gb (half of what is free)")
    parts.add_argument("--data-cpus", type=int, help="CPUs of a data host for functions (all)")
    parts.add_argument(
        "--trainer-cpus", type=_cpus, help="CPUs of a training host for functions: a number, or spare (0)"
    )
    parts.add_argument("--ranks-per-host", type=int, help="ranks on a training host (one for each GPU)")
    parts.add_argument(
        "--no-torchrun",
        dest="torchrun",
        action="store_const",
        const=False,
        help="run the command itself, with MASTER_ADDR, MASTER_PORT, NNODES, NODE_RANK and NPROC_PER_NODE",
    )
    for name, what in (
        ("control", "the launchers' own line"),
        ("coordinator", "the coordinator"),
        ("cache", "the cache"),
        ("ray", "Ray's head"),
        ("master", "torchrun's rendezvous, on the first training host"),
    ):
        default = getattr(LaunchSettings(), f"{name}_port")
        parts.add_argument(f"--{name}-port", type=int, help=f"port of {what} ({default})")
    bounds = parser.add_argument_group("bounds")
    bounds.add_argument(
        "--lost-data-hosts",
        type=int,
        help="so many, the first not counted, may be lost before the run ends (0)",
    )
    bounds.add_argument("--start-wait-s", type=float, help="for hosts and services to appear (600)")
    bounds.add_argument("--stop-wait-s", type=float, help="for training to end when it is asked to (75)")
    bounds.add_argument("--silence-s", type=float, help="a host silent for so long is lost (30)")
    parser.add_argument(
        "--insecure",
        action="store_const",
        const=True,
        help="without TLS and tokens beyond this machine: for networks that nobody else can reach",
    )
    parser.add_argument("--config-dir", default=CONFIG, help=f"where SageMaker tells of the job ({CONFIG})")
    parser.add_argument(
        "--failure-file",
        default="",
        help=f"where the reason of a failure goes ({FAILURE}, if that folder exists)",
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


def _bytes(text: str) -> int:
    try:
        return parse_bytes(text, "--cache-bytes")
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _cpus(text: str) -> int:
    if text == "spare":
        return SPARE
    if not text.isdecimal():
        msg = f"a number of CPUs, or spare; not {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return int(text)
