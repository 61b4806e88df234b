"""The page of a run, ``report.html``: made from the files of its directory, and of nothing else.

So ``superdl report DIRECTORY`` can make it at any time, also of a run that was killed. What it says beside
the figures is in ``templates/run.html``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from superdl.experiments.reporting.page import PAGE_NAME, facts_table, render, write_page
from superdl.experiments.reporting.run_files import RunFiles, read_run
from superdl.experiments.reporting.run_findings import findings
from superdl.experiments.reporting.run_plots import run_plots
from superdl.experiments.reporting.run_tables import run_tables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["run_page", "write_run_page"]


def write_run_page(directory: Path) -> Path:
    """Make the page of a run in its directory; returns where it is.

    Raises:
        ConfigError: the directory is of no run.

    """
    path = directory / PAGE_NAME
    write_page(run_page(read_run(directory)), path)
    return path


def run_page(run: RunFiles) -> str:
    """The page of a run as HTML."""
    facts, loader = run.facts, (run.spec.get("loader") or {}).get("kind", "")
    told = {
        "loader": loader,
        "functions": facts.get("executor"),
        "device": (facts.get("software") or {}).get("device"),
        "ranks": run.ranks if run.ranks > 1 else None,
        "strategy": facts.get("strategy") if run.ranks > 1 else None,
        "precision": facts.get("precision"),
        "begun": facts.get("started_at"),
    }
    settings = facts.get("loader_settings") or {}
    return render(
        "run.html",
        title=f"Run {run.name}: {run.status}",
        subtitle=", ".join(f"{what} {value}" for what, value in told.items() if value),
        run=run,
        facts=facts,
        findings=findings(run),
        notes=(*facts.get("notes", ()), *run.troubles),
        tables=run_tables(run),
        plots=run_plots(run),
        bill=facts.get("bill"),
        settings=facts_table(f"Settings of loader {loader}", settings) if settings else None,
        spec_lines="\n".join(_leaves(run.spec)),
        software=facts.get("software") or {},
        hardware=facts.get("hardware") or {},
    )


def _leaves(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Every value of a spec by its dotted key, as the command line takes it; empty sections are left out."""
    for name, value in mapping.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}={'null' if value is None else value}"
