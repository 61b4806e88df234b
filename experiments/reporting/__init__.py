"""Pages of figures: one HTML file each, with tables and plots that also work in print and without a network.

`page` has the building blocks, `charts` what is plotted, `plots` the drawing, `quantities` how numbers are
written; they know nothing of runs. The page of a run is `experiments.reporting.run_page`'s.
"""

from __future__ import annotations

from superdl.experiments.reporting.charts import Bars, Chart, Line, Lines, Series, Stack
from superdl.experiments.reporting.page import Column, Page, Table, table_of

__all__ = ["Bars", "Chart", "Column", "Line", "Lines", "Page", "Series", "Stack", "Table", "table_of"]
