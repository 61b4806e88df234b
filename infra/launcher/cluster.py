"""Who is here: the hosts of a run, what each is for, and which of them this one is; and what SageMaker says.

Flags name the hosts, or SageMaker does: by the variables of its training toolkit (``SM_HOSTS``,
``SM_CURRENT_HOST``, ``SM_CURRENT_INSTANCE_GROUP``, ``SM_RESOURCE_CONFIG``), else by the file
``resourceconfig.json``, which is there without the toolkit. Hyper-parameters come the same two ways.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from infra.launcher import EXIT_NOT_READY, EXIT_WRONG_SETTINGS, RunFailedError
from superdl.super_wire.encryption import is_loopback
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = [
    "CONFIG_DIRECTORY",
    "DATA_GROUP",
    "TRAINING_GROUP",
    "Cluster",
    "address_of",
    "cluster_of",
    "script_arguments",
]

CONFIG_DIRECTORY = "/opt/ml/input/config"
"""Where SageMaker describes a job."""

DATA_GROUP = "data_group"
TRAINING_GROUP = "dnn_group"

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")
_FORM = (
    '{"hosts": ["algo-1", ...], "current_host": "algo-1", "current_group_name": "data_group", '
    '"instance_groups": [{"instance_group_name": "data_group", "hosts": ["algo-1"]}, ...]}'
)
_VARIABLES = {
    "SM_CURRENT_HOST": "current_host",
    "SM_CURRENT_INSTANCE_GROUP": "current_group_name",
    "SM_NETWORK_INTERFACE_NAME": "network_interface_name",
}
_NAME_RETRY_S = 0.5
_NOT_THE_SCRIPTS = ("sagemaker_", "_tuning_objective_metric")  # hyper-parameters of SageMaker's own


@dataclass(frozen=True, slots=True)
class Cluster:
    """The hosts of a run, as every one of them sees it.

    Attributes:
        data_hosts: those that preprocess; may be empty.
        training_hosts: those that train, in the order of their ranks.
        current: this host.
        interface: the network interface between them, if it is known.
    """

    data_hosts: tuple[str, ...]
    training_hosts: tuple[str, ...]
    current: str
    interface: str = ""

    def __post_init__(self) -> None:
        for host in self.hosts:
            if not _HOST.fullmatch(host):
                msg = f"a host is a name or an address; not {host[:80]!r}"
                raise ConfigError(msg)
        twice = sorted({host for host in self.hosts if self.hosts.count(host) > 1})
        if twice:
            msg = f"the host {twice[0]} is named twice; a host is for data or for training, once"
            raise ConfigError(msg)
        if not self.training_hosts:
            msg = "no host trains: name training hosts (--training-hosts, or an instance group of that name)"
            raise ConfigError(msg)
        if self.current not in self.hosts:
            msg = f"this host, {self.current!r}, is none of the run's: {', '.join(self.hosts)}"
            raise ConfigError(msg)

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
    def node_rank(self) -> int:
        """The place of this host among those that train."""
        return self.training_hosts.index(self.current)

    @property
    def on_loopback(self) -> bool:
        """Whether all of it is on this machine, where nobody listens in."""
        return all(is_loopback(host) for host in self.hosts)


def cluster_of(
    data_hosts: str,
    training_hosts: str,
    current: str,
    environment: Mapping[str, str],
    directory: Path,
    *,
    data_group: str = DATA_GROUP,
    training_group: str = TRAINING_GROUP,
) -> Cluster:
    """The cluster that flags name, else the one that SageMaker describes.

    Args:
        data_hosts: hosts separated by commas, or nothing.
        training_hosts: the same, in the order of their ranks.
        current: this host; empty where SageMaker says it, or where there is one host.
        environment: with the variables of SageMaker's training toolkit, or without.
        directory: where ``resourceconfig.json`` lies if there are no variables.
        data_group: the instance group that preprocesses.
        training_group: the one that trains.

    Raises:
        ConfigError: nobody names hosts, or what names them does not fit together.
    """
    data, training = (
        tuple(filter(None, (host.strip() for host in text.split(","))))
        for text in (data_hosts, training_hosts)
    )
    if data or training:
        current = current or (data + training)[0] * (len(data + training) == 1)
        if not current:
            msg = "say which of the hosts this one is: --host"
            raise ConfigError(msg)
        return Cluster(data, training, current)
    own = {**environment, **({"SM_CURRENT_HOST": current} if current else {})}
    cluster = _cluster_of_sagemaker(own, directory, data_group, training_group)
    if cluster is None:
        msg = (
            "no hosts: name them by --data-hosts, --training-hosts and --host, or by SageMaker's variables "
            f"(SM_HOSTS, SM_CURRENT_HOST, SM_RESOURCE_CONFIG); there is nothing in {directory} either"
        )
        raise ConfigError(msg)
    return cluster


def _cluster_of_sagemaker(
    environment: Mapping[str, str], directory: Path, data_group: str, training_group: str
) -> Cluster | None:
    origin, config = "SM_RESOURCE_CONFIG", environment.get("SM_RESOURCE_CONFIG", "")
    if not config and not environment.get("SM_HOSTS"):
        file = directory / "resourceconfig.json"
        origin, config = str(file), _text_of(file)
    try:
        merged = {**_parsed(config or "{}", origin)}
        merged |= {key: environment[name] for name, key in _VARIABLES.items() if environment.get(name)}
        if environment.get("SM_HOSTS"):
            merged["hosts"] = _names(_parsed(environment["SM_HOSTS"], "SM_HOSTS", list))
        return _cluster_of(merged, origin, data_group, training_group) if merged.get("hosts") else None
    except (AttributeError, KeyError, TypeError) as error:
        msg = f"{origin} is of the form {_FORM}, and SM_HOSTS a list of names; not {config[:80]!r}: {error}"
        raise ConfigError(msg) from error


def _cluster_of(config: Mapping[str, Any], origin: str, data_group: str, training_group: str) -> Cluster:
    hosts, current = _names(config["hosts"]), str(config.get("current_host") or "")
    group = str(config.get("current_group_name") or "")
    described = config.get("instance_groups") or []
    groups = {str(item["instance_group_name"]): _names(item["hosts"]) for item in described}
    if not groups:  # of a homogeneous cluster
        if group == data_group:
            msg = f"this host is of the group {group}, and of which are the others? Set {origin} to {_FORM}"
            raise ConfigError(msg)
        groups = {training_group: hosts}
    stray = sorted({host for members in groups.values() for host in members} ^ set(hosts))
    if stray:
        where = "in no instance group" if stray[0] in hosts else "not among the hosts"
        msg = f"{origin}: {stray[0]} is {where}; groups and hosts name the same"
        raise ConfigError(msg)
    if len(groups) == 1 and data_group not in groups:
        groups = {training_group: hosts}  # the only group trains, whatever its name is
    unknown = sorted(groups.keys() - {data_group, training_group})
    if unknown:
        msg = (
            f"the instance group {unknown[0]} is neither {data_group} nor {training_group}: name the groups "
            "by --data-group and --training-group"
        )
        raise ConfigError(msg)
    data, training = (
        tuple(sorted(groups.get(name, ()), key=_natural)) for name in (data_group, training_group)
    )
    cluster = Cluster(data, training, current, str(config.get("network_interface_name") or ""))
    own = data_group if current in data else training_group
    if len(groups) > 1 and group not in {"", own}:
        msg = f"{origin}: {current} is of the group {own}, and SM_CURRENT_INSTANCE_GROUP says {group}"
        raise ConfigError(msg)
    return cluster


async def address_of(host: str, wait_s: float) -> str:
    """The IP address of a host, IPv4 where it has both.

    On SageMaker the others' resolvers may not know a container's name for a while after the start.

    Raises:
        RunFailedError: nobody knows the name within ``wait_s``.
    """
    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except UnicodeError as error:
            raise RunFailedError(EXIT_WRONG_SETTINGS, f"{host} is no name of a host: {error}") from error
        except OSError as error:
            if time.monotonic() > deadline_s:
                msg = f"the host name {host} cannot be resolved within {wait_s:g} s: {error}"
                raise RunFailedError(EXIT_NOT_READY, msg) from error
            await asyncio.sleep(_NAME_RETRY_S)
        else:
            return str(min(found, key=lambda item: item[0] != socket.AF_INET)[4][0])


def script_arguments(environment: Mapping[str, str], directory: Path) -> list[str]:
    """The hyper-parameters of a SageMaker job as words of the script's command line: ``--name value``.

    The training toolkit gives them as words (``SM_USER_ARGS``) or as a mapping (``SM_HPS``); without it they
    are in ``hyperparameters.json``. They come sorted by name, one of a single letter as ``-n``.

    Raises:
        ConfigError: they do not have the form that SageMaker gives them.
    """
    if environment.get("SM_USER_ARGS"):
        words = _parsed(environment["SM_USER_ARGS"], "SM_USER_ARGS", list)
        return [str(word) for word in words]
    file = directory / "hyperparameters.json"
    origin = "SM_HPS" if environment.get("SM_HPS") else str(file)
    parameters = _parsed(environment.get("SM_HPS") or _text_of(file) or "{}", origin)
    found = []
    for name in sorted(parameters):
        if not name.startswith(_NOT_THE_SCRIPTS):
            found += [f"--{name}" if len(name) > 1 else f"-{name}", _argument(parameters[name])]
    if any("\0" in word for word in found):
        msg = f"{origin}: a hyper-parameter has a NUL, which no program takes"
        raise ConfigError(msg)
    return found


def _argument(value: Any) -> str:
    """A value as a script reads it. SageMaker's SDK quotes texts once more, and writes truths as JSON does;
    both are undone, as its toolkit does. Numbers stay as they were written.
    """
    if isinstance(value, str) and (value in {"true", "false"} or value.startswith('"')):
        try:
            value = json.loads(value)
        except ValueError:
            return str(value)
    if isinstance(value, (dict, list)):
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    return "" if value is None else str(value)


def _text_of(file: Path) -> str:
    """What a file of SageMaker's says; nothing where it is missing."""
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{file} cannot be read: {error}"
        raise ConfigError(msg) from error


def _parsed(text: str, origin: str, kind: type = dict) -> Any:
    """The JSON of ``origin``, which is a mapping or of another ``kind``."""
    form = '{"name": ...}' if kind is dict else '["word", ...]'
    try:
        value = json.loads(text)
    except ValueError as error:
        msg = f"{origin} is no JSON: {error}"
        raise ConfigError(msg) from error
    if not isinstance(value, kind):
        msg = f"{origin} is of the form {form}; not {text[:80]!r}"
        raise ConfigError(msg)
    return value


def _names(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        msg = f"a list of names is missing where {str(value)[:80]!r} is"
        raise TypeError(msg)
    return value


def _natural(host: str) -> tuple[tuple[int, int, str], ...]:
    """An order in which algo-2 comes before algo-10."""
    return tuple(
        (1, int(part), "") if part.isdecimal() else (0, 0, part) for part in re.split(r"([0-9]+)", host)
    )
