"""Rows as JSON lines, at once; strict JSON; directories of runs."""

from __future__ import annotations

import json
import math

import pytest

from superdl.experiments.output import RowLog, new_directory, strict_json
from superdl.super_wire.errors import ConfigError


def test_rows_are_there_before_the_log_is_closed(tmp_path):
    log = RowLog(tmp_path, "steps")
    log.write([{"step": 0, "loss": 0.1}])
    log.write([])
    log.write([{"step": 1, "loss": math.nan}, {"step": 2, "loss": 1e-300}])
    lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text("utf-8").splitlines()]
    log.close()
    assert lines == [{"step": 0, "loss": 0.1}, {"step": 1, "loss": None}, {"step": 2, "loss": 1e-300}]


def test_numbers_that_are_not_finite_become_null():
    text = strict_json({"a": [math.nan, 1.5, (math.inf,)], "b": {"c": -math.inf}, "d": "nan", "e": None})
    assert text == '{"a": [null, 1.5, [null]], "b": {"c": null}, "d": "nan", "e": null}'


def test_each_run_has_a_directory_of_its_own(tmp_path):
    assert len({new_directory(tmp_path, "name") for _ in range(3)}) == 3
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="set output to a directory that you may write"):
        new_directory(tmp_path / "file", "name")
