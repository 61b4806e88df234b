"""Read the files of runs, complete or not, and list all runs below a directory in a log book."""

from __future__ import annotations

import csv
import io
import json
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from superdl.experiments.output import write_whole
from superdl.experiments.reporting.page import Cell, Table, count, render, share, times
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.user_text import read_json
from superdl.super_wire.waits import wait_for

if TYPE_CHECKING:
    from pathlib import Path

REPORT_NAME = "report.json"
REPORT_FORMAT = 2


class Pass(NamedTuple):
    """A pass over a split and its figures, named as in `experiments.records.PassSummary`."""

    epoch: int
    split: str
    figures: dict[str, Any]

    @property
    def name(self) -> str:
        """The name used in tables, with epochs counted from 1."""
        return f"{self.epoch + 1} {self.split}"

    @property
    def job(self) -> dict[str, Any]:
        """The job's counters for this pass, or empty if they were not reported."""
        return self.figures.get("job") or {}

    @property
    def stalls(self) -> dict[str, float]:
        """Seconds of waiting by cause, as in `super_wire.waits`, or empty if none was reported."""
        waits: dict[str, float] = {}
        for cause, total in ((self.figures.get("stalls") or {}).get("causes") or {}).items():
            waits[wait_for(cause)] = waits.get(wait_for(cause), 0.0) + float(total["wait_s"])
        return waits


class Learning(NamedTuple):
    """Loss and accuracy of an epoch's training steps, NaN where absent."""

    loss: array[float]  # compact columns: a run may have millions of steps
    accuracy: array[float]


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files of a run. ``facts`` is its report, and ``troubles`` lists what is unreadable."""

    directory: Path
    facts: dict[str, Any]
    learning: dict[int, Learning] = field(default_factory=dict)
    troubles: tuple[str, ...] = ()

    @property
    def passes(self) -> tuple[Pass, ...]:
        """All passes of the report's epochs, in order."""
        return tuple(
            Pass(epoch["epoch"], split, epoch[split])
            for epoch in self.facts.get("epochs", ())
            for split in ("train", "val")
            if epoch.get(split)
        )

    @property
    def trained(self) -> tuple[Pass, ...]:
        """The training passes."""
        return tuple(epoch_pass for epoch_pass in self.passes if epoch_pass.split == "train")

    @property
    def phases(self) -> list[dict[str, Any]]:
        """Resource use in the start phase and in each pass, or empty without monitoring."""
        return list((self.facts.get("utilization") or {}).get("phases") or ())

    @property
    def spec(self) -> dict[str, Any]:
        """The spec, with all its defaults."""
        return self.facts.get("spec") or {}

    @property
    def name(self) -> str:
        """The run's name."""
        return str(self.facts.get("name") or self.directory.name)

    @property
    def status(self) -> str:
        """Finished, interrupted or failed, or running if the run continues or was killed."""
        return str(self.facts.get("status") or "running")

    @property
    def ranks(self) -> int:
        """The number of ranks that trained."""
        return int(self.facts.get("ranks") or 1)


def read_run(directory: Path) -> RunFiles:
    """Read a run's report and steps, as far as they can be read.

    Raises:
        ConfigError: the directory contains no run.
    """
    if not (directory / REPORT_NAME).is_file():
        remedy = "use one that superdl run has written"
        if any(any(directory.glob(f"{depth}{REPORT_NAME}")) for depth in ("*/", "*/*/")):
            remedy = f"its runs are below it (use one, or show all with superdl report --book {directory})"
        raise ConfigError(f"{directory} is not the directory of a run: it has no {REPORT_NAME}; {remedy}")
    troubles = []
    try:
        facts = read_json(directory / REPORT_NAME, REPORT_NAME)
    except ConfigError as error:
        troubles.append(str(error))
        facts = {}
    learning: dict[int, Learning] = {}
    try:
        if broken := _read_steps(directory / "steps.jsonl", learning):
            troubles.append(
                f"steps.jsonl has {broken} line(s) that this version cannot read, such as one cut off when "
                "the run was killed"
            )
    except FileNotFoundError:
        pass  # the run ended before its first step
    except OSError as error:
        troubles.append(f"steps.jsonl cannot be read: {error}")
    return RunFiles(directory, facts if isinstance(facts, dict) else {}, learning, tuple(troubles))


def _read_steps(path: Path, learning: dict[int, Learning]) -> int:
    broken = 0
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                row = json.loads(line)
                # JSON has null for values that are not finite.
                loss = float("nan") if row["loss"] is None else float(row["loss"])
                accuracy, epoch = float(row["accuracy"]), int(row["epoch"])
                if row["split"] == "train":
                    columns = learning.setdefault(epoch, Learning(array("d"), array("d")))
                    columns.loss.append(loss)
                    columns.accuracy.append(accuracy)
            except (KeyError, TypeError, ValueError, RecursionError):
                broken += 1
    return broken


def read_format(path: Path, expected: int) -> dict[str, Any]:
    """Read a JSON file that states its format."""
    try:
        content = read_json(path)
    except FileNotFoundError as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict) or content.get("format") != expected:
        raise ConfigError(f"{path} is not in format {expected}, which this version reads: create it again")
    return content


# Raised by a report whose values have unexpected types or are missing.
_ODD = (ArithmeticError, AttributeError, ConfigError, LookupError, RecursionError, TypeError, ValueError)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # first characters that a spreadsheet evaluates


class Book(NamedTuple):
    """Rows by column head, with the oldest run first, and the reason for each unreadable path."""

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
                broken[name] = "; ".join(run.troubles) or "its files contain no run"
            row = {"run": name} | {head: _cell(value) for head, value in _row(run).items()}
        except _ODD as error:
            # An unreadable run must not affect the other rows.
            broken[name] = f"it contains no run that this version can read ({type(error).__name__}: {error})"
            continue
        rows += [row] if run.facts else []
    for child in children:
        if not any(place.is_relative_to(child) for place in run_directories):
            broken.setdefault(child.name, f"it contains no run, since it has no {REPORT_NAME}")
    if not rows and not broken:
        raise ConfigError(f"{directory} contains no runs: use the directory that superdl run writes them to")
    return Book(directory, sorted(rows, key=lambda row: (str(row["begun"]), str(row["run"]))), broken)


def write_book(book: Book) -> tuple[Path, Path]:
    """Write ``book.html`` and ``book.csv`` into its directory and return their paths."""
    heads = list(book.rows[0]) if book.rows else []
    shown = [head for head in heads if any(row[head] is not None for row in book.rows)]
    table = Table("All runs, oldest first", shown, [[row[head] for head in shown] for row in book.rows])
    html = render(
        "book.html",
        title=f"Log book of {book.directory.absolute().name}",
        subtitle=f"{count(len(book.rows), 'run')}, {len(book.broken)} unreadable or incomplete",
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
    """Return a run's row by column head. Accuracies are from the last validation."""
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
