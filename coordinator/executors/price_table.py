"""Price tables: ``prices.toml`` in this folder, and a user's file that overrides its entries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from superdl.coordinator.core import Prices
from superdl.coordinator.executors.base import SHIPPED_PRICES
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.user_text import load_toml

# Sections with fixed units, which prices.toml explains.
_PIECES = ("fargate", "endpoint", "nat_gateway", "address", "transfer", "storage")
# Sections with a subsection for each name -> field of the table.
_KINDS = {"machine": "machines", "cache_node": "cache_nodes"}

_CONFIG = ConfigDict(extra="forbid")
_Usd = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_AboveZero = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Thing = TypeVar("_Thing")


@dataclass(frozen=True, slots=True, config=_CONFIG)
class Machine:
    """A machine that is billed by the hour."""

    hour: _Usd
    # On x86, hyperthreads (two per core); on arm, cores.
    vcpus: Annotated[int, Field(gt=0)]
    memory_gib: _AboveZero
    gpus: Annotated[int, Field(ge=0)] = 0
    gpu: str = ""
    arm: bool = False
    nvme_gb: _Usd = 0.0  # included disk
    # Source and date of the price, if they differ from the table's.
    source: str = ""
    date: str = ""

    def __post_init__(self) -> None:
        if bool(self.gpus) != bool(self.gpu):
            raise ConfigError("gpus (the number) and gpu (the name) must be given together")


@dataclass(frozen=True, slots=True, config=_CONFIG)
class CacheNode:
    """A cache node, with its maxmemory before reservations and its baseline network bandwidth."""

    hour: _Usd
    memory_gib: _AboveZero
    network_gbps: _AboveZero


@dataclass(frozen=True, slots=True, config=_CONFIG)
class PriceTable:
    """Prices in US dollars, with their sources."""

    region: str
    date: str
    source: str
    # Prices that were looked up, as section.unit. All others are from memory.
    verified: tuple[str, ...]
    by_executor: dict[str, Prices]
    machines: dict[str, Machine]
    cache_nodes: dict[str, CacheNode]
    fargate: dict[str, _Usd]
    endpoint: dict[str, _Usd]
    nat_gateway: dict[str, _Usd]
    address: dict[str, _Usd]
    transfer: dict[str, _Usd]
    storage: dict[str, _Usd]

    def of(self, executor: str) -> Prices:
        """Return the prices for an executor, or zero prices if the table does not list it."""
        return self.by_executor.get(executor, Prices())

    def machine(self, name: str) -> Machine:
        """Return a machine by name, or raise ``ConfigError`` if the table does not list it."""
        return _named("machine", self.machines, name)

    def cache_node(self, name: str) -> CacheNode:
        """Return a cache node by name, or raise ``ConfigError`` if the table does not list it."""
        return _named("cache_node", self.cache_nodes, name)


def load_prices(file: str | None = None) -> PriceTable:
    """Load the shipped table. Entries in ``file`` override its own.

    Raises ``ConfigError`` for an entry that is not a price.
    """
    table, path = _read(SHIPPED_PRICES), Path(file) if file else SHIPPED_PRICES
    for section, entries in _read(path).items() if file else ():
        known = table.setdefault(section, {})
        if "hour" in entries:  # the shipped share of the coordinator does not fit another price
            known.pop("coordinator_hour", None)
        if section in _PIECES and (unknown := entries.keys() - known.keys()):
            units = ", ".join(known)
            raise ConfigError(f"{path}: {section} has no unit {min(unknown)}, only {units}")
        # A user's file may replace single fields of a machine or cache node.
        for name, value in entries.items():
            known[name] = known.get(name, {}) | value if isinstance(value, dict) else value
    facts = table.pop("about", {})
    facts |= {name: table.pop(section, {}) for section, name in _KINDS.items()}
    facts |= {section: table.pop(section, {}) for section in _PIECES}
    facts["by_executor"] = table  # every other section is an executor
    try:
        return PriceTable(**facts)
    except ValidationError as error:
        first = error.errors()[0]
        where = " ".join(map(str, first["loc"]))
        raise ConfigError(f"{path}: {where}: {first['msg']}, not {first['input']!r}") from error


def _named(kind: str, things: dict[str, _Thing], name: str) -> _Thing:
    if name not in things:
        raise ConfigError(
            f"the price table has no {kind} {name!r}, only {', '.join(sorted(things))}. To add it, use your "
            f'own price table (SUPER_PRICES) with a section [{kind}."{name}"]'
        )
    return things[name]


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the price table {path}: {error}") from error
    table = load_toml(text, f"the price table {path}")
    for section, entries in table.items():
        if not isinstance(entries, dict):
            raise ConfigError(f"{path}: {section} must be in a section such as [lambda]")
    return table
