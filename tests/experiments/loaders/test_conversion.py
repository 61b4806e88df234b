"""Conversions: once for each content, whole or not at all, with their cost told."""

from __future__ import annotations

import os

import pytest

from superdl.experiments.data import Source
from superdl.experiments.loaders import LoaderRequest
from superdl.experiments.loaders.samples import list_samples
from superdl.experiments.loaders.shard_loaders import convert_once
from superdl.experiments.spec import LoaderSpec, RecipeSpec
from tests.fixtures.images import write_images

COUNT = 20


def copied(samples, order, _size_bytes, directory):
    for place, index in enumerate(order):
        (directory / f"{place}").write_bytes(samples.read(index))


@pytest.fixture
def source(tmp_path):
    return write_images(tmp_path / "train", COUNT)


def convert(source, *, write=copied, training=True, tell=lambda _: None):
    request = LoaderRequest(
        Source(f"file://{source}"),
        RecipeSpec(),
        LoaderSpec(),
        training=training,
        seed=0,
        pin_memory=False,
        converted=source.parent / "converted",
        print_line=tell,
    )
    return convert_once(list_samples(request.source, "copies"), "copies", write, request)


def written_in(source):
    return sorted(path.name for path in (source.parent / "converted").iterdir() if path.is_dir())


def test_files_are_written_once_in_shuffled_or_key_order_with_their_cost(source):
    told = []
    first, again = (convert(source, tell=told.append) for _ in range(2))
    assert len(told) == 1
    assert "20 images" in told[0]
    assert str(first[0].parent) in told[0]
    assert first == again
    files = [path.read_bytes() for path in sorted(source.rglob("*.jpg"), key=os.fsencode)]

    def written(conversion):
        return [(conversion[0] / str(place)).read_bytes() for place in range(COUNT)]

    assert sorted(written(first)) == sorted(files)
    assert written(first) != files
    assert first[1] > 0
    validation = convert(source, training=False)
    assert written(validation) == files
    assert validation[0] != first[0]
    assert len(written_in(source)) == 2
