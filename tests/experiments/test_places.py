"""What a job's container names is where a run reads and writes, unless the spec names places itself."""

from __future__ import annotations

import pytest

from superdl.experiments.places import placed
from superdl.experiments.spec import load_spec


def test_channels_are_the_data_of_a_spec_that_names_none():
    channels = {"SM_CHANNEL_TRAIN": "/in/train", "SM_CHANNEL_VALIDATION": "/in/validation"}
    data = placed(load_spec("resnet18_ddp_finetune", quick=True), channels).data
    assert (data.kind, data.train, data.val) == ("directory", "/in/train", "/in/validation")
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
