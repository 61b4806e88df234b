"""The page of a run, ``report.html``: made from the files of its directory, and of nothing else.

So it can be made anew at any time (``superdl report DIRECTORY``), also of a run that was killed. Reading is
left to `run_files`, the words to `run_words`, tables and charts to `run_tables` and `run_plots`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.reporting.page import Page
from experiments.reporting.run_files import RunFiles, read_run
from experiments.reporting.run_plots import learning_charts, speed_charts, step_charts, usage_charts
from experiments.reporting.run_tables import data_time_table, passes_table, processors_table
from experiments.reporting.run_words import verdict

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["PAGE_NAME", "run_page", "write_page"]

PAGE_NAME = "report.html"


def write_page(directory: Path) -> Path:
    """Make the page of a run in its directory; returns where it is.

    Raises:
        ConfigError: the directory is of no run.

    """
    path = directory / PAGE_NAME
    run_page(read_run(directory)).write(path)
    return path


def run_page(run: RunFiles) -> Page:
    """The page of a run."""
    begun = run.known.get("started_at") or (run.manifest or {}).get("started_at") or "at a time not known"
    page = Page(f"Run {run.name}: {run.status}", f"begun {begun}")
    page.points(verdict(run))
    for note in (*run.known.get("notes", ()), *run.troubles):
        page.note(note)
    if run.passes:
        _passes(page, run)
        _time(page, run)
    _processors(page, run)
    return page


def _passes(page: Page, run: RunFiles) -> None:
    page.heading("Passes")
    page.table(passes_table(run))
    page.plot("Images per second, by epoch; each plot has its own scale.", speed_charts(run), columns=2)
    page.plot(
        "Left: loss, lower is better. Right: how many images the model classifies rightly.",
        learning_charts(run),
        columns=2,
    )


def _time(page: Page, run: RunFiles) -> None:
    page.heading("Where the time went")
    page.paragraph(
        "Only what the trainer waits slows it. The other seconds overlap: workers read ahead and functions "
        "fetch and decode ahead while a step computes, several at once, so their sums may be larger than the "
        "time of the pass."
    )
    page.table(data_time_table(run))
    charts = step_charts(run)
    if charts:
        page.plot(
            "What the steps of the first epoch and of the last consist of.", charts, columns=len(charts)
        )


def _processors(page: Page, run: RunFiles) -> None:
    table = processors_table(run)
    if table is None:
        return
    page.heading("Device and processors")
    page.table(table)
    charts = usage_charts(run)
    if charts:
        page.plot("Cores in use by the parts of the run, on each other.", charts)
