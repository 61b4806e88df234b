"""Who is here: the hosts of a run, what each is for, and which of them this one is.

Flags say it, or what SageMaker says: the variables of its training toolkit (``SM_HOSTS``,
``SM_CURRENT_HOST``, ``SM_CURRENT_INSTANCE_GROUP``, ``SM_RESOURCE_CONFIG``), else the file
``resourceconfig.json`` from which the toolkit makes them, and which is there without it. Names are not
resolved here.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from superdl.super_wire.errors import ConfigError
from superdl.super_wire.loopback import is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = [
    "DATA_GROUP",
    "RESOURCE_CONFIG",
    "TRAINING_GROUP",
    "Cluster",
    "cluster_of_flags",
    "cluster_of_sagemaker",
]

DATA_GROUP = "data_group"
TRAINING_GROUP = "dnn_group"
RESOURCE_CONFIG = "resourceconfig.json"

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")
_FORM = (
    '{"hosts": ["algo-1", ...], "current_host": "algo-1", "current_group_name": "data_group", '
    '"instance_groups": [{"instance_group_name": "data_group", "hosts": ["algo-1"]}, ...]}'
)


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


def cluster_of_flags(data_hosts: str, training_hosts: str, current: str) -> Cluster:
    """The cluster that flags name: hosts separated by commas, in the order of their ranks.

    Raises:
        ConfigError: they name none, or do not say which of them this host is.
    """
    data, training = (
        tuple(filter(None, (host.strip() for host in text.split(","))))
        for text in (data_hosts, training_hosts)
    )
    if not current and len(data + training) == 1:
        current = (data + training)[0]
    if not current:
        msg = "say which of the hosts this one is: --host"
        raise ConfigError(msg)
    return Cluster(data, training, current)


def cluster_of_sagemaker(
    environment: Mapping[str, str],
    directory: Path,
    *,
    data_group: str = DATA_GROUP,
    training_group: str = TRAINING_GROUP,
) -> Cluster | None:
    """The cluster that SageMaker tells of; ``None`` if it tells of none.

    Args:
        environment: with the variables of SageMaker's training toolkit, or without.
        directory: where ``resourceconfig.json`` lies if there are no variables.
        data_group: the instance group that preprocesses.
        training_group: the one that trains.

    Raises:
        ConfigError: what is told is no JSON, or does not fit together.
    """
    config, origin = _resource_config(environment, directory)
    hosts = _names(environment.get("SM_HOSTS", ""), "SM_HOSTS") or _strings(config.get("hosts"))
    if not hosts:
        return None
    current = environment.get("SM_CURRENT_HOST", "") or str(config.get("current_host") or "")
    group = environment.get("SM_CURRENT_INSTANCE_GROUP", "") or str(config.get("current_group_name") or "")
    groups = _groups(config, origin)
    if not groups:  # of a homogeneous cluster
        if group == data_group:
            msg = (
                f"this host is of the group {group}, and which hosts the others are is not told: set "
                f"SM_RESOURCE_CONFIG to {_FORM}"
            )
            raise ConfigError(msg)
        groups = {group or training_group: list(hosts)}
    _check_groups(groups, hosts, origin)
    if len(groups) == 1 and data_group not in groups:
        groups = {training_group: next(iter(groups.values()))}
    strange = sorted(groups.keys() - {data_group, training_group})
    if strange:
        msg = (
            f"the instance group {strange[0]} is neither {data_group} nor {training_group}: name the groups "
            "by --data-group and --training-group"
        )
        raise ConfigError(msg)
    cluster = Cluster(
        tuple(sorted(groups.get(data_group, ()), key=_natural)),
        tuple(sorted(groups.get(training_group, ()), key=_natural)),
        current,
        str(environment.get("SM_NETWORK_INTERFACE_NAME") or config.get("network_interface_name") or ""),
    )
    own = data_group if current in cluster.data_hosts else training_group
    if group and group != own and len(groups) > 1:
        msg = f"{origin}: {current} is of the group {own}, and SM_CURRENT_INSTANCE_GROUP says {group}"
        raise ConfigError(msg)
    return cluster


def _resource_config(environment: Mapping[str, str], directory: Path) -> tuple[dict[str, Any], str]:
    """What SageMaker says of the hosts, and where it says so."""
    text, origin = environment.get("SM_RESOURCE_CONFIG", ""), "SM_RESOURCE_CONFIG"
    if not text and not environment.get("SM_HOSTS"):
        file = directory / RESOURCE_CONFIG
        origin = str(file)
        try:
            text = file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}, origin
        except (OSError, UnicodeDecodeError) as error:
            msg = f"{origin} cannot be read: {error}"
            raise ConfigError(msg) from error
    config = _json(text, origin) if text else {}
    if not isinstance(config, dict):
        msg = f"{origin} is of the form {_FORM}; not {text[:80]!r}"
        raise ConfigError(msg)
    return config, origin


def _groups(config: Mapping[str, Any], origin: str) -> dict[str, list[str]]:
    """The hosts of each instance group, by its name."""
    told = config.get("instance_groups") or []
    groups: dict[str, list[str]] = {}
    for group in told if isinstance(told, list) else [told]:
        name = group.get("instance_group_name") if isinstance(group, dict) else None
        if not isinstance(name, str) or not _strings(group.get("hosts")):
            msg = f"{origin}: an instance group has a name and hosts, as in {_FORM}; not {str(group)[:80]!r}"
            raise ConfigError(msg)
        groups[name] = _strings(group["hosts"])
    return groups


def _check_groups(groups: Mapping[str, Sequence[str]], hosts: Sequence[str], origin: str) -> None:
    grouped = {host for members in groups.values() for host in members}
    stray = sorted(grouped ^ set(hosts))
    if stray:
        where = "in no instance group" if stray[0] in hosts else "not among the hosts"
        msg = f"{origin}: {stray[0]} is {where}; groups and hosts name the same"
        raise ConfigError(msg)


def _names(text: str, origin: str) -> list[str]:
    if not text:
        return []
    names = _strings(_json(text, origin))
    if not names:
        msg = f'{origin} is a JSON list of names, such as ["algo-1","algo-2"]; not {text[:80]!r}'
        raise ConfigError(msg)
    return names


def _json(text: str, origin: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        msg = f"{origin} is no JSON: {error}"
        raise ConfigError(msg) from error


def _strings(value: Any) -> list[str]:
    """The value, if it is a list of texts; else nothing."""
    return value if isinstance(value, list) and all(isinstance(item, str) for item in value) else []


def _natural(host: str) -> tuple[tuple[int, int, str], ...]:
    """An order in which algo-2 comes before algo-10."""
    return tuple(
        (1, int(part), "") if part.isdecimal() else (0, 0, part) for part in re.split(r"([0-9]+)", host)
    )
