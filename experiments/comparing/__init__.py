"""``superdl compare``: run the arms of a spec in interleaved rounds, and compare their figures."""

from __future__ import annotations

# Imports nothing, because the process of each run imports this package.
__all__: list[str] = []
