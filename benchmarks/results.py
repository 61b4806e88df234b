"""What every benchmark reports: its table, how it was measured, and on which machine with which versions.

The same figures go out as JSON. Measuring is the benchmarks'.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table

from superdl.experiments.machine import describe_environment, describe_hardware
from superdl.experiments.output import now_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import Console

__all__ = [
    "BenchmarkReport",
    "Column",
    "Run",
    "Started",
    "by_conditions",
    "medians",
    "over",
    "print_report",
]

_FORMAT = 2

_NOT_SETTINGS = ("command", "benchmark", "json", "output", "data")
"""Options that change no figure, some of them paths of the machine."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the table: the figure's name in a row, the heading, and the format of a number."""

    name: str
    heading: str
    spec: str = ""

    def cell(self, row: dict[str, Any]) -> str:
        """The figure as text; a dash where there is none."""
        value = row.get(self.name)
        return "-" if value is None else format(value, self.spec)


class BenchmarkReport(NamedTuple):
    """One benchmark, done: what its JSON says, and how its rows are shown.

    Rows that agree in ``group_by`` stand in one table.
    """

    told: dict[str, Any]
    group_by: Sequence[str]
    columns: Sequence[Column]


Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Run(Generic[Result]):
    """One measurement: the conditions, which are its row's first columns, the round, and what came of it, a
    dataclass.
    """

    conditions: dict[str, Any]
    round: int
    result: Result

    def to_mapping(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {**self.conditions, "round": self.round, **asdict(cast("Any", self.result))}


def by_conditions(runs: Iterable[Run[Result]]) -> list[tuple[dict[str, Any], list[Result]]]:
    """The results of all rounds under each conditions, in the order of the first."""
    groups: dict[tuple[Any, ...], tuple[dict[str, Any], list[Result]]] = {}
    for run in runs:
        groups.setdefault(tuple(run.conditions.values()), (run.conditions, []))[1].append(run.result)
    return list(groups.values())


def medians(figures: Sequence[Mapping[str, float | None]]) -> dict[str, Any]:
    """The median of each figure over the measurements that have it; ``None`` where none has."""
    values = {name: [value for some in figures if (value := some[name]) is not None] for name in figures[0]}
    return {name: median(known) if known else None for name, known in values.items()}


def over(above: float | None, below: float | None) -> float | None:
    """The ratio of two figures; ``None`` where one is missing or the second is 0."""
    return above / below if above is not None and below else None


class Started:
    """A benchmark that is under way: since when, and on which machine.

    Args:
        arguments: its name and its options.
        packages: whose versions matter beside SUPER's own.

    """

    def __init__(self, arguments: argparse.Namespace, packages: Iterable[str] = ()) -> None:
        self._arguments = arguments
        self._began_s = time.perf_counter()
        self._started_at = now_text()
        self._environment = _describe_machine(packages)

    def report(
        self,
        *,
        method: Sequence[str],
        columns: Sequence[Column],
        rows: Iterable[dict[str, Any]],
        rounds: Iterable[dict[str, Any]] = (),
        group_by: Sequence[str] = (),
        **more: Any,
    ) -> BenchmarkReport:
        """The report of the benchmark, which ends now.

        Args:
            method: says what was counted.
            columns: of the table.
            rows: the figures.
            rounds: what they were made of.
            group_by: names of figures; rows that agree in them stand in one table.
            more: stands beside the options in the settings.

        """
        options = {name: value for name, value in vars(self._arguments).items() if name not in _NOT_SETTINGS}
        told = {
            "format": _FORMAT,
            "benchmark": self._arguments.benchmark,
            "started_at": self._started_at,
            "wall_s": time.perf_counter() - self._began_s,
            "settings": {**options, **more},
            "method": list(method),
            "rows": list(rows),
            "rounds": list(rounds),
            "environment": self._environment,
        }
        return BenchmarkReport(told, group_by, columns)


def print_report(report: BenchmarkReport, console: Console) -> None:
    """Print a table for each group of rows, with the columns that have figures there; method and machine."""
    told = report.told

    def title(row: dict[str, Any]) -> str:
        return ", ".join([told["benchmark"], *(f"{name} {row[name]}" for name in report.group_by)])

    for heading, group in itertools.groupby(told["rows"], key=title):
        rows = list(group)
        columns = [one for one in report.columns if any(row.get(one.name) is not None for row in rows)]
        console.print(heading, highlight=False, markup=False)
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for column in columns:
            number = bool(column.spec)
            table.add_column(column.heading, justify="right" if number else "left", no_wrap=number)
        for row in rows:
            table.add_row(*(column.cell(row) for column in columns))
        console.print(table)
    measured = f"Measured at {told['started_at']} in {told['wall_s']:.0f} s."
    for line in (*told["method"], _machine_line(told["environment"]), measured):
        console.print(line, highlight=False, markup=False)


def _describe_machine(packages: Iterable[str]) -> dict[str, Any]:
    """This machine and its software, the processor and memory too; no host, user or path names.

    ``packages`` are named with their versions beside SUPER's own, ``None`` where one is not installed.
    """
    hardware, environment = describe_hardware(), describe_environment(torch.device("cpu"))
    return {
        **environment,
        "packages": {**environment["packages"], **{name: _version(name) for name in sorted(packages)}},
        "cpu_model": hardware["cpu"] or "unknown",
        "memory_bytes": hardware["memory_bytes"],
        "load_average_1min": os.getloadavg()[0],
    }


def _version(package: str) -> str | None:
    with contextlib.suppress(PackageNotFoundError):
        return version(package)
    return None


def _machine_line(environment: dict[str, Any]) -> str:
    packages = environment["packages"]
    versions = ", ".join(f"{name} {version}" for name, version in packages.items() if version is not None)
    return (
        f"{environment['cpu_model']}, {environment['usable_cpus']} cores, "
        f"{environment['memory_bytes'] / 2**30:.0f} GiB, {environment['platform']}, "
        f"Python {environment['python']}, {versions}"
    )
