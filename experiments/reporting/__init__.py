"""Pages of figures, an HTML file each: tables and plots, also in print and offline.

`page` draws plots and renders templates, `quantities` formats numbers; neither depends on runs. The modules
that begin with ``run`` build the page of a run from its files.
"""

from __future__ import annotations

__all__: list[str] = []
