"""Reads price tables: ``prices.toml`` beside this file, and a file of the user's that replaces what it names.

A table has one section for each executor, with the fields of :class:`coordinator.core.prices.Prices`, and a
section ``about`` that names region, date and source.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from coordinator.core.prices import Prices
from super_wire.errors import ConfigError

__all__ = ["PriceTable", "load_prices"]

_DEFAULT = Path(__file__).with_name("prices.toml")
_ABOUT = ("region", "date", "source")
_UNITS = tuple(entry.name for entry in fields(Prices))


@dataclass(frozen=True, slots=True)
class PriceTable:
    """Prices by executor, and where they come from."""

    region: str
    date: str
    source: str
    by_executor: dict[str, Prices]

    def of(self, executor: str) -> Prices:
        """The prices of an executor; nothing is billed for one that the table does not name."""
        return self.by_executor.get(executor, Prices())


def load_prices(file: str | None = None) -> PriceTable:
    """The table, with what ``file`` names replaced.

    Raises:
        ConfigError: the file cannot be read, or holds what is no price; the message names it.
    """
    table = _read(_DEFAULT)
    if file:
        for section, entries in _read(Path(file)).items():
            table[section] = table.get(section, {}) | entries
    about = table.pop("about", {})
    return PriceTable(
        region=str(about.get("region", "")),
        date=str(about.get("date", "")),
        source=str(about.get("source", "")),
        by_executor={
            name: Prices(**{unit: float(value) for unit, value in row.items()}) for name, row in table.items()
        },
    )


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        raise ConfigError(f"the price table {path} cannot be read: {error}") from error
    for section, entries in table.items():
        if not isinstance(entries, dict):
            raise ConfigError(f"{path}: {section} stands outside of a section such as [lambda]")
        known = _ABOUT if section == "about" else _UNITS
        for name, value in entries.items():
            if name not in known:
                raise ConfigError(f"{path}: [{section}] has no {name!r}; there are {', '.join(known)}")
            if section == "about":
                continue
            if (
                isinstance(value, bool)
                or not isinstance(value, (int, float))
                or not 0 <= value < float("inf")
            ):
                raise ConfigError(f"{path}: [{section}] {name} is a number from 0 up; not {value!r}")
    return table
