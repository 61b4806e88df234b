"""The one error of this folder, which ``superdl`` reports as it reports SUPER's own."""

from __future__ import annotations

from superdl.super_wire.errors import SuperError

__all__ = ["BenchmarkError"]


class BenchmarkError(SuperError):
    """A measurement could not be made, or measured something else than it says."""
