"""Reads price tables: ``prices.toml`` beside this file, and a file of the user's that replaces what it names.

A table has a section ``about`` that names region, date and source; one for each executor, with the fields of
:class:`superdl.coordinator.core.Prices`; and sections for machines, nodes of a cache and other pieces
of a deployment, with the fields of the classes below. What follows from prices is others':
:mod:`superdl.coordinator.core.ledger` for what is spent, :mod:`superdl.cost` for plans.
"""

from __future__ import annotations

import tomllib
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from superdl.coordinator.core import Prices
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Machine", "PriceTable", "load_prices"]

_DEFAULT = Path(__file__).with_name("prices.toml")
_TEXTS = ("region", "date", "source")
_Table = dict[str, dict[str, Any]]
_Thing = TypeVar("_Thing")


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that is paid for by the hour.

    ``vcpus`` of x86 are hyperthreads, two to a core; those of ``arm`` are cores. ``gpu`` names the kind of
    its ``gpus``, if it has any.
    """

    hour: float
    vcpus: int
    memory_gib: float
    gpus: int = 0
    gpu: str = ""
    arm: bool = False

    def __post_init__(self) -> None:
        if not self.vcpus or not self.memory_gib:
            raise ConfigError("vcpus and memory_gib are above 0")
        if bool(self.gpus) != bool(self.gpu):
            raise ConfigError("gpus and gpu go together: how many, and their name")


@dataclass(frozen=True, slots=True)
class CacheNode:
    """A node of a cache: its maxmemory before what is reserved, and the network that is always there."""

    hour: float
    memory_gib: float
    network_gbps: float

    def __post_init__(self) -> None:
        if not self.memory_gib or not self.network_gbps:
            raise ConfigError("memory_gib and network_gbps are above 0")


@dataclass(frozen=True, slots=True)
class Fargate:
    """A container for an hour, by its vCPUs and its GB of memory."""

    vcpu_hour: float
    gb_hour: float


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An interface endpoint in one zone: an hour of it, and a GB through it."""

    hour: float
    gb: float


@dataclass(frozen=True, slots=True)
class NatGateway:
    """A NAT gateway: an hour of it, and a GB through it."""

    hour: float
    gb: float


@dataclass(frozen=True, slots=True)
class Address:
    """An hour of a public IPv4 address."""

    hour: float


@dataclass(frozen=True, slots=True)
class Transfer:
    """A GB between availability zones, both sides together, and a GB out to the internet."""

    between_zones_gb: float
    internet_gb: float


@dataclass(frozen=True, slots=True)
class Storage:
    """A GB for a month, in the object store and on a disk."""

    s3_gb_month: float
    disk_gb_month: float


_PIECES: dict[str, type] = {
    "fargate": Fargate,
    "endpoint": Endpoint,
    "nat_gateway": NatGateway,
    "address": Address,
    "transfer": Transfer,
    "storage": Storage,
}
_KINDS: dict[str, type] = {"machine": Machine, "cache_node": CacheNode}
"""Sections of sections, by the name of the thing."""


@dataclass(frozen=True, slots=True)
class PriceTable:
    """What things cost, in US dollars, and where the figures come from.

    ``verified`` names, as ``section.unit``, what was looked up; all else is from memory.
    """

    region: str
    date: str
    source: str
    verified: tuple[str, ...]
    by_executor: dict[str, Prices]
    machines: dict[str, Machine]
    cache_nodes: dict[str, CacheNode]
    fargate: Fargate
    endpoint: Endpoint
    nat_gateway: NatGateway
    address: Address
    transfer: Transfer
    storage: Storage

    def of(self, executor: str) -> Prices:
        """The prices of an executor; nothing is billed for one that the table does not name."""
        return self.by_executor.get(executor, Prices())

    def machine(self, name: str) -> Machine:
        """A machine by its name.

        Raises:
            ConfigError: the table has none of that name.
        """
        return _named("machine", self.machines, name)

    def cache_node(self, name: str) -> CacheNode:
        """A node of the cache by its name.

        Raises:
            ConfigError: the table has none of that name.
        """
        return _named("cache_node", self.cache_nodes, name)


def load_prices(file: str | None = None) -> PriceTable:
    """The table, with what ``file`` names replaced.

    Raises:
        ConfigError: the file cannot be read, or holds what is no price; the message names it.
    """
    table, path = _read(_DEFAULT), _DEFAULT
    if file:
        path = Path(file)
        for section, entries in _read(path).items():
            if section in _KINDS:
                things = table.setdefault(section, {})
                for name, row in entries.items():
                    things[name] = things.get(name, {}) | row
            else:
                known = table.get(section, {})
                if "hour" in entries:  # what of it is the coordinator's, only who says both knows
                    known = {unit: price for unit, price in known.items() if unit != "coordinator_hour"}
                table[section] = known | entries
    about = table.pop("about", {})
    kinds = {section: _things(path, section, table.pop(section, {})) for section in _KINDS}
    pieces = {
        section: _made(path, f"[{section}]", kind, table.pop(section)) for section, kind in _PIECES.items()
    }
    return PriceTable(
        region=about["region"],
        date=about["date"],
        source=about["source"],
        verified=tuple(about["verified"]),
        by_executor={name: _made(path, f"[{name}]", Prices, row) for name, row in table.items()},
        machines=kinds["machine"],
        cache_nodes=kinds["cache_node"],
        **pieces,
    )


def _named(kind: str, things: Mapping[str, _Thing], name: str) -> _Thing:
    if name not in things:
        raise ConfigError(
            f"the price table has no {kind} {name!r}; there are {', '.join(sorted(things))}. A file of yours "
            f'(SUPER_PRICES, --prices) may add it: [{kind}."{name}"]'
        )
    return things[name]


def _things(path: Path, section: str, rows: _Table) -> dict[str, Any]:
    return {name: _made(path, f"[{section}.{name!r}]", _KINDS[section], row) for name, row in rows.items()}


def _made(path: Path, where: str, kind: type, row: Mapping[str, Any]) -> Any:
    """An object of what was read, once nothing is missing that has no default."""
    missing = [entry.name for entry in fields(kind) if entry.name not in row and entry.default is MISSING]
    if missing:
        raise ConfigError(f"{path}: {where} lacks {', '.join(missing)}")
    try:
        return kind(**row)
    except ConfigError as error:
        raise ConfigError(f"{path}: {where}: {error}") from error


def _read(path: Path) -> _Table:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        raise ConfigError(f"the price table {path} cannot be read: {error}") from error
    for section, entries in table.items():
        if not isinstance(entries, dict):
            raise ConfigError(f"{path}: {section} stands outside of a section such as [lambda]")
        if section == "about":
            _check_about(path, entries)
        elif section in _KINDS:
            for name, row in entries.items():
                if not isinstance(row, dict):
                    raise ConfigError(
                        f'{path}: [{section}] has a section for each by name, [{section}."{name}"]; not '
                        f"{name} = {row!r}"
                    )
                _check(path, f"[{section}.{name!r}]", _KINDS[section], row)
        else:  # what is no piece of a deployment is an executor
            _check(path, f"[{section}]", _PIECES.get(section, Prices), entries)
    return table


def _check_about(path: Path, entries: Mapping[str, Any]) -> None:
    known = (*_TEXTS, "verified")
    for name, value in entries.items():
        if name not in known:
            raise ConfigError(f"{path}: [about] has no {name!r}; there are {', '.join(known)}")
        if name in _TEXTS and not isinstance(value, str):
            raise ConfigError(f"{path}: [about] {name} is a text; not {value!r}")
        if name == "verified" and not (
            isinstance(value, list) and all(isinstance(one, str) for one in value)
        ):
            raise ConfigError(f'{path}: [about] verified is a list of texts such as "lambda.gb_s"')


def _check(path: Path, where: str, kind: type, row: dict[str, Any]) -> None:
    """See that every value is of its field's type, and make floats of whole numbers where it is a price."""
    types = {entry.name: str(entry.type) for entry in fields(kind)}
    for name, value in row.items():
        if name not in types:
            raise ConfigError(f"{path}: {where} has no {name!r}; there are {', '.join(types)}")
        wanted = types[name]
        if wanted in {"str", "bool"}:
            if type(value).__name__ != wanted:
                raise ConfigError(
                    f"{path}: {where} {name} is {'a text' if wanted == 'str' else 'true or false'}"
                )
            continue
        if (
            isinstance(value, bool)
            or not isinstance(value, int if wanted == "int" else (int, float))
            or not 0 <= value < float("inf")
        ):
            number = "a whole number" if wanted == "int" else "a number"
            raise ConfigError(f"{path}: {where} {name} is {number} from 0 up; not {value!r}")
        row[name] = value if wanted == "int" else float(value)
