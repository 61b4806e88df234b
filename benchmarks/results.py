"""What every benchmark reports: its table, how it was measured, and on which machine with which versions.

The same figures go out as JSON. Measuring is the benchmarks'.
"""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table

from superdl.experiments.manifest import describe_environment, describe_hardware
from superdl.experiments.output import now_text, strict_json
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

    from rich.console import Console

__all__ = [
    "REPORT_FORMAT",
    "BenchmarkReport",
    "Column",
    "Run",
    "Started",
    "by_conditions",
    "describe_machine",
    "print_report",
    "to_json",
    "write_json",
]

REPORT_FORMAT = 2

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
        value = row[self.name]
        return "-" if value is None else format(value, self.spec)


@dataclass(frozen=True, slots=True)
class BenchmarkReport:
    """One benchmark, done.

    ``rows`` are the figures, ``rounds`` what they were made of, ``method`` says what was counted. Rows
    that agree in ``group_by`` stand in one table.
    """

    benchmark: str
    started_at: str
    wall_s: float
    settings: dict[str, Any]
    method: tuple[str, ...]
    group_by: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[dict[str, Any], ...]
    rounds: tuple[dict[str, Any], ...]
    environment: dict[str, Any] = field(default_factory=dict)

    def to_mapping(self) -> dict[str, Any]:
        """Return the report as plain values for JSON; how columns are shown is left out."""
        mapping = asdict(self)
        del mapping["columns"], mapping["group_by"]
        return {"format": REPORT_FORMAT, **mapping}

    def title(self, row: dict[str, Any]) -> str:
        """What stands above the table that the row belongs to."""
        return ", ".join([self.benchmark, *(f"{name} {row[name]}" for name in self.group_by)])


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


class Started:
    """A benchmark that is under way: since when, and on which machine.

    Args:
        arguments: its name and its options.
        environment: what is known of the machine; None: what can be known of any.

    """

    def __init__(self, arguments: argparse.Namespace, environment: dict[str, Any] | None = None) -> None:
        self._arguments = arguments
        self._began_s = time.perf_counter()
        self._started_at = now_text()
        self._environment = describe_machine() if environment is None else environment

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
        """The report of the benchmark, which ends now; ``more`` stands beside the options in its settings."""
        options = {name: value for name, value in vars(self._arguments).items() if name not in _NOT_SETTINGS}
        return BenchmarkReport(
            benchmark=self._arguments.benchmark,
            started_at=self._started_at,
            wall_s=time.perf_counter() - self._began_s,
            settings={**options, **more},
            method=tuple(method),
            group_by=tuple(group_by),
            columns=tuple(columns),
            rows=tuple(rows),
            rounds=tuple(rounds),
            environment=self._environment,
        )


def to_json(report: BenchmarkReport) -> str:
    """The report as JSON text."""
    return strict_json(report.to_mapping(), indent=2) + "\n"


def write_json(report: BenchmarkReport, file: str) -> None:
    """Write the report as JSON.

    Raises:
        ConfigError: the file cannot be written.

    """
    try:
        Path(file).write_text(to_json(report), encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot write the report to {file}: {error.strerror}; name another file (--output)"
        ) from error


def print_report(report: BenchmarkReport, console: Console) -> None:
    """Print a table for each group of rows, the method, the machine."""
    for title, rows in itertools.groupby(report.rows, key=report.title):
        table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left")
        for column in report.columns:
            number = bool(column.spec)
            table.add_column(column.heading, justify="right" if number else "left", no_wrap=number)
        for row in rows:
            table.add_row(*(column.cell(row) for column in report.columns))
        console.print(table)
    machine = _machine_line(report.environment)
    for line in (*report.method, machine, f"Measured at {report.started_at} in {report.wall_s:.0f} s."):
        console.print(line, highlight=False, markup=False)


def describe_machine() -> dict[str, Any]:
    """This machine and its software, the processor and memory too; no host, user or path names."""
    hardware = describe_hardware()
    return {
        **describe_environment(torch.device("cpu")),
        "cpu_model": hardware["cpu"] or "unknown",
        "memory_bytes": hardware["memory_bytes"],
        "load_average_1min": os.getloadavg()[0],
    }


def _machine_line(environment: dict[str, Any]) -> str:
    packages = environment["packages"]
    versions = ", ".join(f"{name} {version}" for name, version in packages.items() if version is not None)
    return (
        f"{environment['cpu_model']}, {environment['usable_cpus']} cores, "
        f"{environment['memory_bytes'] / 2**30:.0f} GiB, {environment['platform']}, "
        f"Python {environment['python']}, {versions}"
    )
