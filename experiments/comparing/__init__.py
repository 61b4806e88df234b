"""Run the arms of a spec interleaved with `superdl compare`, and compare their figures."""

from __future__ import annotations

# Nothing is imported here, since the process of each run imports this package.
__all__: list[str] = []
