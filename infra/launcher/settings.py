"""How a run is launched, and who is here: options of the command line, or what SageMaker says of a job.

``submit`` and ``local`` parse what they pass on with the same parser. SageMaker puts ``resourceconfig.json``
and ``hyperparameters.json`` into every container of a job.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from superdl.experiments import CHECKPOINT_DIR, MODEL_DIR, OUTPUT_DIR
from superdl.super_wire.encryption import is_loopback
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.sizes import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = [
    "DATA_GROUP",
    "SPARE",
    "TRAINING_GROUP",
    "Cluster",
    "LaunchSettings",
    "OptionParser",
    "as_words",
    "cluster_of",
    "job_environment",
    "launcher_parser",
    "parse",
    "training_words",
]

DATA_GROUP = "data_group"
TRAINING_GROUP = "dnn_group"
SPARE = -1
"""All the CPUs that the ranks of a host leave."""

_T = TypeVar("_T")
_WEEK_S = 7 * 86_400.0
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")
_SCRIPT = "train-script"
_NOT_THE_SCRIPTS = ("sagemaker_", "_tuning_objective_metric", _SCRIPT)  # SageMaker's own, and the launcher's


class OptionParser(argparse.ArgumentParser):
    """Raises :class:`ConfigError` where argparse would end the process."""

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments."""
        raise ConfigError(message)


class LaunchSettings(argparse.Namespace):
    """The parsed options of the launcher, by the names that :func:`launcher_parser` gives them."""

    def ports(self) -> dict[str, int]:
        """The settings that are ports."""
        return {name: value for name, value in vars(self).items() if name.endswith("_port")}

    @property
    def own_ray(self) -> bool:
        """Whether the launcher starts Ray."""
        return "ray" in self.executor.replace(" ", "").split(",") and not self.coordinator


def launcher_parser() -> OptionParser:
    """The parser of ``python -m infra.launcher``: each option, its default, its bounds and its help."""
    parser = OptionParser(
        prog="python -m infra.launcher",
        usage="%(prog)s [options] -- train.py [arguments]",
        description="Run one host's part of a training run with SUPER.",
    )
    add = parser.add_argument_group("hosts (none of these on SageMaker)").add_argument
    add("--data-hosts", default="", help="hosts that preprocess, separated by commas")
    add("--training-hosts", default="", help="hosts that train, in the order of their ranks")
    add("--host", default="", help="which of them this one is")
    add = parser.add_argument_group("what is started").add_argument
    add("--executor", default="ray", help="how functions run: ray (default), local, lambda, or several")
    add("--coordinator", default="", help="one that runs already; then no cache and no Ray are started")
    add("--cache", default="", help="a cache that runs already: rediss://host:port")
    add("--cache-bytes", default=0, type=_bytes, help="the cache's, such as 64gb (half of what is available)")
    add("--data-cpus", default=0, type=_count, help="CPUs of a data host for functions (all)")
    add("--trainer-cpus", default=0, type=_cpus, help="the same of a training host: a number, or spare (0)")
    add("--ranks-per-host", default=0, type=_count, help="ranks on a training host (one for each GPU)")
    words = "run the command itself, with MASTER_ADDR, MASTER_PORT, NNODES, NODE_RANK and NPROC_PER_NODE"
    add("--no-torchrun", action="store_true", help=words)
    words = "no TLS and no tokens beyond this machine: for networks that nobody else can reach"
    add("--insecure", action="store_true", help=words)
    add = parser.add_argument_group("ports and bounds").add_argument
    add("--control-port", default=50050, type=_port, help="of the launchers' own connections (50050)")
    add("--coordinator-port", default=50051, type=_port, help="of the coordinator (50051)")
    add("--cache-port", default=50052, type=_port, help="of the cache (50052)")
    add("--ray-port", default=50053, type=_port, help="of Ray's head (50053)")
    add("--master-port", default=29500, type=_port, help="of torchrun's rendezvous (29500)")
    add("--start-wait-s", default=600.0, type=_seconds, help="for hosts and services to appear (600)")
    add("--stop-wait-s", default=75.0, type=_seconds, help="for training to end when it is asked to (75)")
    add("--silence-s", default=30.0, type=_seconds, help="a host that is silent for so long is lost (30)")
    words = "where SageMaker describes the job (/opt/ml/input/config)"
    parser.add_argument("--config-dir", default=Path("/opt/ml/input/config"), type=Path, help=words)
    words = "where the reason of a failure goes (/opt/ml/output/failure, if that folder exists)"
    parser.add_argument("--failure-file", type=Path, help=words)
    words = "the training script and its arguments, after -- (of a job: its hyper-parameter train-script)"
    parser.add_argument("command", nargs="*", help=words)
    return parser


def _within(least: float, most: float, kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def number(text: str) -> Any:
        if not least <= (value := kind(text)) <= most:
            raise argparse.ArgumentTypeError(f"from {least:g} to {most:g}; not {text}")
        return value

    return number


_port = _within(1, 65_535, int)
_count = _within(0, 1_000_000, int)
_seconds = _within(0.01, _WEEK_S, float)


def _bytes(text: str) -> int:
    try:
        return parse_bytes(text, "this")
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _cpus(text: str) -> Any:
    return SPARE if text == "spare" else _count(text)


def parse(arguments: Sequence[str], into: LaunchSettings | None = None) -> LaunchSettings:
    """Parse the launcher's command line; ``into`` has what was understood before an argument that is wrong.

    Raises:
        ConfigError: an argument is wrong, or they do not fit together.
    """
    settings = launcher_parser().parse_args(arguments, into or LaunchSettings())
    ports = settings.ports()
    if len(set(ports.values())) < len(ports):
        told = ", ".join(f"{name}={port}" for name, port in ports.items())
        raise ConfigError(f"each port is another; not {told}")
    if settings.coordinator and settings.cache:
        raise ConfigError("a running coordinator has its own cache: name --coordinator or --cache")
    return settings


@dataclass(frozen=True, slots=True)
class Cluster:
    """The hosts of a run, as every one of them sees it.

    Attributes:
        data_hosts: those that preprocess; may be empty.
        training_hosts: those that train, in the order of their ranks.
        current: this host.
    """

    data_hosts: tuple[str, ...]
    training_hosts: tuple[str, ...]
    current: str

    def __post_init__(self) -> None:
        for host in self.hosts:
            if not _HOST.fullmatch(host):
                raise ConfigError(f"a host is a name or an address; not {host[:80]!r}")
            if self.hosts.count(host) > 1:
                raise ConfigError(f"the host {host} is named twice; it is for data or for training, once")
        if not self.training_hosts:
            raise ConfigError(f"no host trains: name --training-hosts, or an instance group {TRAINING_GROUP}")
        if self.current not in self.hosts:
            named = ", ".join(self.hosts)
            raise ConfigError(f"this host, {self.current!r}, is none of the run's: {named} (--host)")

    @property
    def hosts(self) -> tuple[str, ...]:
        """All of them, the leader first."""
        return self.data_hosts + self.training_hosts

    @property
    def leader(self) -> str:
        """The host with coordinator and cache: the first data host, else the first that trains."""
        return self.hosts[0]

    @property
    def leads(self) -> bool:
        """Whether this host is the leader."""
        return self.current == self.leader

    @property
    def trains(self) -> bool:
        """Whether this host trains."""
        return self.current in self.training_hosts

    @property
    def on_loopback(self) -> bool:
        """Whether all of it is on this machine, where nobody listens in."""
        return all(is_loopback(host) for host in self.hosts)


class _Group(BaseModel):
    instance_group_name: str
    hosts: list[str]


class _ResourceConfig(BaseModel):
    current_host: str
    hosts: list[str]
    instance_groups: list[_Group] = []


def cluster_of(settings: LaunchSettings) -> Cluster:
    """The cluster that flags name, else the one that SageMaker describes.

    Raises:
        ConfigError: nobody names hosts, or what names them does not fit together.
    """
    flags = (settings.data_hosts, settings.training_hosts)
    data, training = (tuple(filter(None, map(str.strip, text.split(",")))) for text in flags)
    if data or training:
        return Cluster(data, training, settings.host or (data + training)[0] * (len(data + training) == 1))
    file = settings.config_dir / "resourceconfig.json"
    config = _read(file, TypeAdapter(_ResourceConfig))
    if config is None:
        msg = f"no hosts: name them by --data-hosts, --training-hosts and --host; there is no {file} either"
        raise ConfigError(msg)
    groups = {group.instance_group_name: group.hosts for group in config.instance_groups}
    if len(groups) <= 1 and DATA_GROUP not in groups:  # the only group trains, whatever its name is
        groups = {TRAINING_GROUP: config.hosts}
    named = {host for hosts in groups.values() for host in hosts}
    if groups.keys() - {DATA_GROUP, TRAINING_GROUP} or named != set(config.hosts):
        msg = f"{file}: each of {config.hosts} is in {DATA_GROUP} or {TRAINING_GROUP}; not {groups}"
        raise ConfigError(msg)
    data, training = (  # algo-2 before algo-10
        tuple(sorted(groups.get(name, ()), key=lambda host: (len(host), host)))
        for name in (DATA_GROUP, TRAINING_GROUP)
    )
    return Cluster(data, training, config.current_host)


def training_words(settings: LaunchSettings) -> list[str]:
    """The training command: the script that was named, by a job's hyper-parameter too, then the others.

    Raises:
        ConfigError: nobody names a script, or ``hyperparameters.json`` is none of SageMaker's.
    """
    file = settings.config_dir / "hyperparameters.json"
    parameters = _read(file, TypeAdapter(dict[str, str])) or {}
    script = _argument(parameters.get(_SCRIPT, ""))
    if not (settings.command or script):
        raise ConfigError(f"no training script: name it after --, or by the hyper-parameter {_SCRIPT}")
    return [*(settings.command or [script]), *as_words(parameters)]


def job_environment(directory: Path) -> dict[str, str]:
    """The variables by which scripts know a SageMaker job's places and hosts; none where there is no job.

    SageMaker's own toolkit sets them, which is not what the container starts.

    Raises:
        ConfigError: a file does not have the form that SageMaker gives it.
    """
    config = _read(directory / "resourceconfig.json", TypeAdapter(_ResourceConfig))
    if config is None:
        return {}
    root = directory.parent.parent
    channels = _read(directory / "inputdataconfig.json", TypeAdapter(dict[str, Any])) or {}
    places = {f"SM_CHANNEL_{name.upper()}": root / "input/data" / name for name in channels}
    places |= {MODEL_DIR: root / "model", OUTPUT_DIR: root / "output/data"}
    places |= {CHECKPOINT_DIR: root / "checkpoints"} if (root / "checkpoints").is_dir() else {}
    hosts = {"SM_HOSTS": json.dumps(config.hosts), "SM_CURRENT_HOST": config.current_host}
    return {name: str(place) for name, place in places.items()} | hosts


def as_words(parameters: Mapping[str, str]) -> list[str]:
    """Hyper-parameters as words of the script's command line, ``--name value``, sorted by name.

    One of a single letter comes as ``-n``.
    """
    return [
        word
        for name, value in sorted(parameters.items())
        if not name.startswith(_NOT_THE_SCRIPTS)
        for word in (f"--{name}" if len(name) > 1 else f"-{name}", _argument(value))
    ]


def _argument(text: str) -> str:
    """A value as a script reads it: SageMaker's SDK writes texts and truths as JSON. Numbers stay."""
    if text in {"true", "false"} or text.startswith('"'):
        with contextlib.suppress(ValueError):
            return str(json.loads(text))
    return text


def _read(file: Path, form: TypeAdapter[_T]) -> _T | None:
    """What a file of SageMaker's says; ``None`` where it is missing."""
    try:
        return form.validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise ConfigError(f"{file} cannot be used: {error}") from error
