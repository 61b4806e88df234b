"""Prices of executors. Only a user's table needs pydantic, whose import is a sixth of a start."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from superdl.coordinator.core import Prices

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SHIPPED_PRICES", "prices_of_executors"]

SHIPPED_PRICES = Path(__file__).with_name("prices.toml")


def prices_of_executors(file: str) -> Callable[[str], Prices]:
    """Return a function that gives the prices of an executor by its name; zero for an unknown one.

    Args:
        file: a price table of the user's; empty for the shipped one alone.

    Raises:
        ConfigError: ``file`` cannot be read, or holds what is no price.
    """
    if file:
        from superdl.coordinator.executors.price_table import load_prices

        return load_prices(file).of
    table = tomllib.loads(SHIPPED_PRICES.read_text(encoding="utf-8"))
    return lambda executor: Prices(**table.get(executor, {}))
