"""A log book of all runs below a directory, a row each, as HTML and CSV."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any, NamedTuple

from superdl.experiments.output import write_whole
from superdl.experiments.reporting.page import Cell, Table, render
from superdl.experiments.reporting.quantities import count, share, times
from superdl.experiments.reporting.run_files import REPORT_NAME, read_run
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from superdl.experiments.reporting.run_files import RunFiles

# Raised by a report whose values have unexpected types or are missing.
_ODD = (ArithmeticError, AttributeError, ConfigError, LookupError, RecursionError, TypeError, ValueError)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # first characters that a spreadsheet evaluates


class Book(NamedTuple):
    """Rows by column head, oldest run first, and the reason for each unreadable path."""

    directory: Path
    rows: list[dict[str, Cell]]
    broken: dict[str, str]


def read_book(directory: Path) -> Book:
    """Read all runs below a directory, including those of comparisons."""
    broken: dict[str, str] = {}
    try:
        children = sorted(child for child in directory.iterdir() if child.is_dir())
    except OSError as error:
        raise ConfigError(f"{directory} cannot be read: {error.strerror}") from error
    run_directories = sorted(file.parent for file in directory.rglob(REPORT_NAME))
    rows = []
    for place in run_directories:
        name = str(place.relative_to(directory))
        try:
            run = read_run(place)
            if run.troubles or not run.facts:
                broken[name] = "; ".join(run.troubles) or "its files hold no run"
            row = {"run": name} | {head: _cell(value) for head, value in _row(run).items()}
        except _ODD as error:
            # An unreadable run must not affect the other rows.
            broken[name] = f"it holds no run of this version ({type(error).__name__}: {error})"
            continue
        rows += [row] if run.facts else []
    for child in children:
        if not any(place.is_relative_to(child) for place in run_directories):
            broken.setdefault(child.name, f"no run lies in it: it has no {REPORT_NAME}")
    if not rows and not broken:
        raise ConfigError(f"{directory} holds no runs: name the directory that superdl run writes them into")
    return Book(directory, sorted(rows, key=lambda row: (str(row["begun"]), str(row["run"]))), broken)


def write_book(book: Book) -> tuple[Path, Path]:
    """Write ``book.html`` and ``book.csv`` into its directory and return their paths."""
    heads = list(book.rows[0]) if book.rows else []
    shown = [head for head in heads if any(row[head] is not None for row in book.rows)]
    table = Table("All runs, the oldest first", shown, [[row[head] for head in shown] for row in book.rows])
    html = render(
        "book.html",
        title=f"Log book of {book.directory.absolute().name}",
        subtitle=f"{count(len(book.rows), 'run')}, {len(book.broken)} that cannot be read, or not whole",
        table=table,
        broken=sorted(book.broken.items()),
        plots_missing=None,
    )
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(heads)
    # After a leading quote, spreadsheets show text instead of evaluating it.
    writer.writerows(
        [f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell for cell in row.values()]
        for row in book.rows
    )
    page, sheet = book.directory / "book.html", book.directory / "book.csv"
    write_whole(html, page)
    write_whole(text.getvalue(), sheet)
    return page, sheet


def _cell(value: Any) -> Cell:
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, int | float):
        raise TypeError(f"a figure is {value!r}")
    float(value)  # an integer without end raises here, not on the page
    return value


def _row(run: RunFiles) -> dict[str, Any]:
    """Return a run's row by column head; accuracies are of the last validation."""
    facts, loader, cost = run.facts, run.spec.get("loader") or {}, run.spec.get("cost") or {}
    hardware = (facts.get("environment") or {}).get("hardware") or {}
    machine = f"{cost.get('machines') or 1} x {cost['machine']}" if cost.get("machine") else None
    if machine is None and hardware:
        gpus = [gpu["name"] for gpu in hardware.get("gpus") or ()]
        machine = f"{hardware['usable_cores']} cores of {', '.join([hardware['cpu'], *gpus])}"
    waited_s, took_s = (sum(each.figures[name] for each in run.trained) for name in ("wait_s", "wall_s"))
    busy = [phase for phase in run.phases if phase["split"] == "train" and phase["gpu_percent"] is not None]
    memory = [phase["gpu_memory_bytes_max"] for phase in busy if phase["gpu_memory_bytes_max"] is not None]
    busy_s = sum(phase["gpu_percent"] * phase["wall_s"] for phase in busy)
    return {
        "begun": facts.get("started_at"),
        "name": run.name,
        "how it ended": f"{run.status}: {facts['reason']}" if facts.get("reason") else run.status,
        "machine": machine,
        "model": (run.spec.get("model") or {}).get("name"),
        "loader": loader.get("kind"),
        "strategy": facts.get("strategy"),
        "ranks": run.ranks,
        "batch (a rank)": loader.get("batch_size"),
        "precision": facts.get("precision"),
        "epochs": len(run.trained),
        "top-1 (% right)": times(facts.get("val_accuracy"), 100),
        "top-5 (% right)": times(facts.get("val_top5_accuracy"), 100),
        "time (s)": facts.get("wall_s"),
        "throughput (images/s)": facts.get("images_per_s"),
        "waiting (% of training)": times(share(waited_s, took_s), 100),
        "GPU (% busy)": share(busy_s, sum(phase["wall_s"] for phase in busy)),
        "GPU memory (most, GB)": times(max(memory, default=None), 1e-9),
        "cost (USD)": (facts.get("bill") or {}).get("usd"),
    }
