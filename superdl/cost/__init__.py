"""The cost of epochs for each way of loading (``superdl cost``), and the bill for a run."""

from __future__ import annotations

__all__: list[str] = []
