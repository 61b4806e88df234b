"""Pages of figures: one HTML file each, with tables and plots that also work in print and without a network.

`page` draws plots and renders templates, `quantities` writes numbers; they know nothing of runs. The page
of a run is made of its files by the modules that begin with ``run``.
"""

from __future__ import annotations

__all__: list[str] = []
