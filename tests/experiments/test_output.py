"""Rows as JSON lines and as CSV: the same columns, the same values, at once."""

from __future__ import annotations

import csv
import json
import math

import pytest

from superdl.experiments.output import RowLog, new_directory, strict_json
from superdl.super_wire.errors import ConfigError


def test_both_files_have_the_same_rows_before_the_log_is_closed(tmp_path):
    log = RowLog(tmp_path, "steps", ("step", "loss", "name"))
    log.write([{"name": 'a "b", c', "step": 0, "loss": 0.1}])
    log.write([])
    log.write([{"name": None, "step": 1, "loss": math.nan}, {"name": "ä", "step": 2, "loss": 1e-300}])
    lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text("utf-8").splitlines()]
    with (tmp_path / "steps.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.reader(file))
    log.close()
    assert lines == [
        {"step": 0, "loss": 0.1, "name": 'a "b", c'},
        {"step": 1, "loss": None, "name": None},
        {"step": 2, "loss": 1e-300, "name": "ä"},
    ]
    assert table == [
        ["step", "loss", "name"],
        ["0", "0.1", 'a "b", c'],
        ["1", "", ""],
        ["2", "1e-300", "ä"],
    ]


def test_numbers_that_are_not_finite_become_null():
    text = strict_json({"a": [math.nan, 1.5, (math.inf,)], "b": {"c": -math.inf}, "d": "nan", "e": None})
    assert text == '{"a": [null, 1.5, [null]], "b": {"c": null}, "d": "nan", "e": null}'


def test_each_run_has_a_directory_of_its_own(tmp_path):
    assert len({new_directory(tmp_path, "name") for _ in range(3)}) == 3
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="set output to a directory that you may write"):
        new_directory(tmp_path / "file", "name")
