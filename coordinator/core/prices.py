"""What work costs, in US dollars: plain numbers that the core multiplies. Where they come from is others'."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from superdl.super_wire.errors import ConfigError

__all__ = ["Prices"]


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars for each unit of what is counted; all zero where nothing is billed by use.

    ``invocation`` one request to a function; ``gb_s`` one second of one GB (2**30 bytes) of its memory;
    ``source_request`` one GET; ``source_gb`` and ``record_gb`` one GB fetched from the source, and written to
    or read from the cache; ``hour`` the cache and the coordinator, used or not.
    """

    invocation: float = 0.0
    gb_s: float = 0.0
    source_request: float = 0.0
    source_gb: float = 0.0
    record_gb: float = 0.0
    hour: float = 0.0

    @property
    def billed(self) -> bool:
        """Whether anything costs anything."""
        return any(getattr(self, entry.name) for entry in fields(self))

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if not 0 <= value < math.inf:
                raise ConfigError(f"the price {entry.name} is a number from 0 up; not {value!r}")
