"""Writes rows as they happen, twice: as JSON lines for programs, as CSV for spreadsheets, with equal columns.

What the rows are is left to who writes them (`experiments.step_log`, `experiments.monitoring`).
"""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from superdl.experiments.strict_json import finite, strict_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["RowLog"]


class RowLog:
    """``<name>.jsonl`` and ``<name>.csv`` in a directory; each group of rows is written at once.

    What is absent (None, or a number that is not finite) is null in the one and empty in the other. Nothing
    is buffered in this process: a worker forked meanwhile must not hold, and write again, half of a row.
    """

    def __init__(self, directory: Path, name: str, columns: Sequence[str]) -> None:
        """Make both files, the CSV with its head."""
        self._columns = tuple(columns)
        self._lines = (directory / f"{name}.jsonl").open("wb", buffering=0)
        self._table = (directory / f"{name}.csv").open("wb", buffering=0)
        self._table.write(_csv([self._columns]))

    def write(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Append rows, each of which has every column."""
        if not rows:
            return
        ordered = [{name: row[name] for name in self._columns} for row in rows]
        self._lines.write("".join(strict_json(row) + "\n" for row in ordered).encode())
        self._table.write(_csv([[finite(value) for value in row.values()] for row in ordered]))

    def close(self) -> None:
        """Close both files."""
        self._lines.close()
        self._table.close()


def _csv(rows: Sequence[Sequence[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
