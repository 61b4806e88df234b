"""Benchmark reports as tables and JSON: the figures, the method, and the machine."""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table

from superdl.experiments.machine import describe_environment, describe_hardware, version_of
from superdl.experiments.output import now_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rich.console import Console

_FORMAT = 2

# Options that change no figure; some are paths of the machine.
_NOT_SETTINGS = ("command", "benchmark", "json", "output", "data")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table: its name in a row, the heading, and the number format."""

    name: str
    heading: str
    spec: str = ""

    def cell(self, row: dict[str, Any]) -> str:
        """Return the figure as text, or a dash if it is missing."""
        value = row.get(self.name)
        return "-" if value is None else format(value, self.spec)


@dataclass(frozen=True, slots=True)
class BenchmarkReport:
    """The results of a benchmark."""

    method: Sequence[str]  # describes what was counted
    columns: Sequence[Column]  # of the tables; a column without figures is left out
    rows: Iterable[dict[str, Any]]
    rounds: Iterable[dict[str, Any]] = ()  # the measurements behind the rows
    group_by: Sequence[str] = ()  # names of figures; rows that agree in them form one table
    packages: Iterable[str] = ()  # further packages whose versions matter
    settings: Mapping[str, Any] = field(default_factory=dict)  # added to the options in the JSON


Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Run(Generic[Result]):
    """One measurement: the conditions (its row's first columns), round, and result."""

    conditions: dict[str, Any]
    round: int
    result: Result

    def to_mapping(self) -> dict[str, Any]:
        """Return all fields as plain values."""
        return {**self.conditions, "round": self.round, **asdict(cast("Any", self.result))}


def by_conditions(runs: Iterable[Run[Result]]) -> list[tuple[dict[str, Any], list[Result]]]:
    """Return the results of all rounds, grouped by conditions in order of appearance."""
    groups: dict[tuple[Any, ...], tuple[dict[str, Any], list[Result]]] = {}
    for run in runs:
        groups.setdefault(tuple(run.conditions.values()), (run.conditions, []))[1].append(run.result)
    return list(groups.values())


def medians(figures: Sequence[Mapping[str, float | None]]) -> dict[str, Any]:
    """Return the median of each figure over the rows that have it, or None if none has."""
    values = {name: [value for row in figures if (value := row[name]) is not None] for name in figures[0]}
    return {name: median(present) if present else None for name, present in values.items()}


def over(above: float | None, below: float | None) -> float | None:
    """Return the ratio of two figures, or None if one is missing or the second is 0."""
    return above / below if above is not None and below else None


def measured(
    measure: Callable[[argparse.Namespace, Callable[[str], None]], BenchmarkReport],
    arguments: argparse.Namespace,
    say: Callable[[str], None],
) -> tuple[BenchmarkReport, dict[str, Any]]:
    """Run a benchmark. Return its report, and as JSON the figures, options, machine and versions."""
    # Before the benchmark, which is itself a load.
    began_s, started_at, load = time.perf_counter(), now_text(), os.getloadavg()[0]
    report = measure(arguments, say)
    options = {name: value for name, value in vars(arguments).items() if name not in _NOT_SETTINGS}
    return report, {
        "format": _FORMAT,
        "benchmark": arguments.benchmark,
        "started_at": started_at,
        "wall_s": time.perf_counter() - began_s,
        "settings": {**options, **report.settings},
        "method": list(report.method),
        "rows": list(report.rows),
        "rounds": list(report.rounds),
        "environment": {**_describe_machine(report.packages), "load_average_1min": load},
    }


def print_report(report: BenchmarkReport, content: Mapping[str, Any], console: Console) -> None:
    """Print a table per group of rows, without empty columns, then the method and the machine."""

    def title(row: dict[str, Any]) -> str:
        return ", ".join([content["benchmark"], *(f"{name} {row[name]}" for name in report.group_by)])

    for heading, group in itertools.groupby(content["rows"], key=title):
        rows = list(group)
        filled = {name for row in rows for name, value in row.items() if value is not None}
        columns = [column for column in report.columns if column.name in filled]
        console.print(heading, highlight=False, markup=False)
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for column in columns:
            number = bool(column.spec)
            table.add_column(column.heading, justify="right" if number else "left", no_wrap=number)
        for row in rows:
            table.add_row(*(column.cell(row) for column in columns))
        console.print(table)
    at = f"Measured at {content['started_at']} in {content['wall_s']:.0f} s."
    for line in (*content["method"], _machine_line(content["environment"]), at):
        console.print(line, highlight=False, markup=False)


def _describe_machine(packages: Iterable[str]) -> dict[str, Any]:
    """Return this machine's hardware and software, with the versions of ``packages`` besides SUPER's."""
    hardware, environment = describe_hardware(), describe_environment(torch.device("cpu"))
    return {
        **environment,
        "packages": {**environment["packages"], **{name: version_of(name) for name in sorted(packages)}},
        "cpu_model": hardware["cpu"] or "unknown",
        "memory_bytes": hardware["memory_bytes"],
    }


def _machine_line(environment: dict[str, Any]) -> str:
    packages = environment["packages"]
    versions = ", ".join(f"{name} {version}" for name, version in packages.items() if version is not None)
    return (
        f"{environment['cpu_model']}, {environment['usable_cpus']} cores, "
        f"{environment['memory_bytes'] / 2**30:.0f} GiB, {environment['platform']}, "
        f"Python {environment['python']}, {versions}"
    )
