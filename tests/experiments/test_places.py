"""Files of runs, and the description of the machine."""

import getpass
import json
import math
import os
import platform
from pathlib import Path

import pytest
import torch

from superdl.experiments.machine import describe_machine
from superdl.experiments.output import RowLog, new_directory
from superdl.super_wire.errors import ConfigError


def test_rows_are_written_at_once_as_strict_json(tmp_path):
    log = RowLog(tmp_path, "steps")
    log.write([{"step": 0, "loss": 0.1}])
    log.write([])
    log.write([{"step": 1, "loss": math.nan}, {"step": 2, "loss": [-math.inf, 1e-300]}])
    lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text("utf-8").splitlines()]
    log.close()
    assert lines == [{"step": 0, "loss": 0.1}, {"step": 1, "loss": None}, {"step": 2, "loss": [None, 1e-300]}]


def test_each_run_has_its_own_directory(tmp_path):
    assert len({new_directory(tmp_path, "name") for _ in range(3)}) == 3
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="Set output to a writable directory"):
        new_directory(tmp_path / "file", "name")


def test_a_machine_is_described_without_names_of_users_or_hosts():
    known = describe_machine(torch.device("cpu"))
    assert known["python"] == platform.python_version()
    assert known["packages"]["torch"] == torch.__version__
    assert known["packages"]["superdl"]
    assert known["cpus"] == os.cpu_count()
    assert known["memory_bytes"] > 1 << 28
    assert len(known["gpus"]) == torch.cuda.device_count()
    text = json.dumps(known)
    assert f"{Path.home()}/" not in text
    for name in (platform.node(), getpass.getuser()):
        if len(name) > 4:  # shorter ones are parts of words
            assert name not in text
