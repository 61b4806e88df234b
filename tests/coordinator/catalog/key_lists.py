"""Write key lists of every format, read them as the lister does, and create source files."""

import csv
import json
import threading

import pyarrow as pa
from pyarrow import parquet

from superdl.coordinator.catalog.key_list import read_key_list
from superdl.coordinator.catalog.listing import Tally


def read(path, *, of_files=True, progress=lambda _: None):
    return read_key_list(str(path), Tally(progress, threading.Event()), of_files=of_files)


def make(directory, *names):
    """Create one-byte files and the folders that they need."""
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def write_csv(path, rows):
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(rows[0])
        writer.writerows(row.values() for row in rows)


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_parquet(path, rows):
    parquet.write_table(pa.Table.from_pylist(rows), path)


WRITERS = {"csv": write_csv, "jsonl": write_jsonl, "parquet": write_parquet}


def written(tmp_path, extension, rows):
    path = tmp_path / f"labels.{extension}"
    WRITERS[extension](path, rows)
    return path
