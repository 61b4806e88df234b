"""Where a run writes and on what it runs: places of a job, files and machine."""

import getpass
import json
import math
import os
import platform
from pathlib import Path

import pytest
import torch

from superdl.experiments.machine import describe_machine
from superdl.experiments.output import RowLog, new_directory, strict_json
from superdl.experiments.spec import load_spec, placed
from superdl.super_wire.errors import ConfigError


def test_channels_are_the_data_of_a_spec_that_names_none():
    channels = {"SM_CHANNEL_TRAIN": "/in/train", "SM_CHANNEL_VALIDATION": "/in/validation"}
    data = placed(load_spec("resnet18_ddp_finetune", quick=True), channels).data
    assert (data.kind, data.train, data.val) == ("auto", "/in/train", "/in/validation")
    for own in ("data.directory=/my/set", "data.kind=auto"):
        more = [own] if own.startswith("data.directory") else [own, "data.train=s3://bucket/train"]
        spec = load_spec("digits", more)
        assert placed(spec, channels).data == spec.data


def test_files_go_where_they_are_uploaded_and_a_model_is_kept(tmp_path):
    spec = load_spec("digits")
    assert placed(spec, {}) == spec
    found = placed(spec, {"SM_OUTPUT_DATA_DIR": "/out/data", "SM_MODEL_DIR": "/model"})
    assert (found.output, found.training.checkpoint_every) == ("/out/data", spec.epochs)
    assert (
        placed(load_spec("digits", ["output=s3://b/runs"]), {"SM_OUTPUT_DATA_DIR": "/o"}).output
        == "s3://b/runs"
    )


@pytest.mark.parametrize("earlier", [(), ("digits-20260101-000000", "digits-20260301-000000", "digits2-2")])
def test_a_job_that_was_taken_its_machine_goes_on_from_its_newest_run(tmp_path, earlier):
    for name in earlier:
        (tmp_path / name / "checkpoints").mkdir(parents=True)
        (tmp_path / name / "checkpoints/last.pt").write_bytes(b"")
    (tmp_path / "digits-20260501-000000").mkdir()  # ended before its first checkpoint
    found = placed(load_spec("digits"), {"SM_CHECKPOINT_DIR": str(tmp_path), "SM_OUTPUT_DATA_DIR": "/out"})
    assert (found.output, found.training.checkpoint_every) == (str(tmp_path), 1)
    assert found.training.resume == (str(tmp_path / "digits-20260301-000000") if earlier else None)


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
    with pytest.raises(ConfigError, match="Set output to a writable directory"):
        new_directory(tmp_path / "file", "name")


def test_it_names_versions_and_hardware_and_nobody():
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
