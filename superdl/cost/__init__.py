"""Costs of the epochs of jobs, by way of loading, and the bill of a run.

:mod:`~superdl.cost.scenario` has the inputs with their sources, :mod:`~superdl.cost.model` the arithmetic,
both for ``superdl cost``; :mod:`~superdl.cost.bill` bills runs. All prices come from the price table.
"""

from __future__ import annotations

__all__: list[str] = []
