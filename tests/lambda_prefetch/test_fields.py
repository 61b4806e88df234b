"""Samples with several fields: parts of all kinds are joined, and the first failure is reported."""

import json
import tarfile
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from superdl.coordinator.catalog import list_source
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.record_kinds import read_arrays
from tests.lambda_prefetch.prefetching import encode, pixels, raw_record, request_for, run

COUNT = 6
RECIPE = Recipe.fields(image=Recipe.image(), mask=Recipe.mask(), depth=Recipe.mask())
MASKS = [np.full((8, 6), number, dtype=np.uint8) for number in range(COUNT)]
DEPTHS = [np.full((8, 6), 300 + number, dtype=np.uint16) for number in range(COUNT)]


def request_of(directory, rows, cache, recipe=RECIPE, **options):
    """Return the coordinator's request for all samples of a key list with these rows."""
    (directory.parent / "list.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    catalog = list_source(str(directory), str(directory.parent / "list.jsonl"))
    return replace(
        request_for(catalog.bucket, {}, cache, recipe, **options),
        ids=catalog.sample_ids(recipe.digest, fields=recipe.beside),
        fields=recipe.beside,
        **catalog.part_columns(np.arange(len(catalog)), recipe.beside),
    )


@pytest.fixture
def source(tmp_path):
    """Images in a Parquet file, masks in a tar file, depths as files. Return rows of a key list."""
    directory, rows = tmp_path / "source", []
    directory.mkdir()
    images = [encode(pixels(seed=number), "PNG") for number in range(COUNT)]
    parquet.write_table(pa.table({"image": images}), directory / "images.parquet", row_group_size=4)
    with tarfile.open(directory / "masks.tar", "w") as archive:
        for number, mask in enumerate(MASKS):
            Image.fromarray(mask).save(tmp_path / f"{number}.png")
            archive.add(tmp_path / f"{number}.png", f"{number}.png")
            Image.fromarray(DEPTHS[number]).save(directory / f"{number}.png")
    with tarfile.open(directory / "masks.tar") as archive:
        for number, entry in enumerate(archive):
            row = {"key": "images.parquet", "label": 0, "member": str(number), "encoding": "parquet:image"}
            row |= {"offset": number // 4, "length": number % 4, "depth.key": f"{number}.png"}
            row |= {"mask.key": "masks.tar", "mask.member": entry.name}
            rows.append(row | {"mask.offset": entry.offset_data, "mask.length": entry.size})
    return directory, rows


@pytest.mark.parametrize("threads", ["1", "4"])
def test_rows_members_and_objects_are_joined(source, valkey, monkeypatch, threads):
    monkeypatch.setenv("SUPER_FETCH_THREADS", threads)
    monkeypatch.setenv("SUPER_DECODERS", threads)
    request = request_of(*source, valkey.unix_url)
    result = run(request)
    assert result.outcomes == ("cached",) * COUNT
    assert result.source_requests == 1 + 2 + 1 + COUNT  # a footer, row groups, one span, objects
    for number in range(COUNT):
        arrays = read_arrays(raw_record(valkey, request, number), sample_id=request.sample_id(number))
        assert list(arrays) == ["depth", "image", "mask"]
        assert np.array_equal(arrays["image"], pixels(seed=number))
        assert np.array_equal(arrays["mask"], MASKS[number])
        assert np.array_equal(arrays["depth"], DEPTHS[number])
    assert 0 not in {result.source_bytes, result.fetch_us, result.decode_us}


def test_parts_may_exceed_the_budget_together(tmp_path, valkey, monkeypatch):
    monkeypatch.setenv("SUPER_FETCH_BYTES", str(2**20))
    directory = tmp_path / "source"
    directory.mkdir()
    noise = np.random.default_rng(0).integers(0, 256, (600, 600, 3), dtype=np.uint8)
    for number in range(4):
        Image.fromarray(noise).save(directory / f"{number}.bmp")  # each more than the budget
        Image.fromarray(noise[..., 0]).save(directory / f"m{number}.bmp")
    rows = [{"key": f"{n}.bmp", "label": 0, "mask.key": f"m{n}.bmp"} for n in range(4)]
    recipe = Recipe.fields(image=Recipe.image(crop=8), mask=Recipe.mask(crop=8))
    assert run(request_of(directory, rows, valkey.unix_url, recipe)).outcomes == ("cached",) * 4


def test_the_first_failed_part_is_reported_whatever_the_order(source, valkey):
    directory, rows = source
    Image.fromarray(pixels()).save(directory / "4.png")  # a depth of three channels
    whole = rows[5]
    rows[5] = whole | {"mask.offset": whole["mask.offset"] + 1}  # no PNG begins there
    request = request_of(directory, rows, valkey.unix_url)
    (directory / "1.png").unlink()
    (directory / "5.png").unlink()
    for _ in range(3):
        result = run(request)
        assert result.outcomes == ("cached", "missing", "cached", "cached", "tombstone", "missing")
        told = result.messages
        assert "images.parquet::1: field 'depth', 1.png: the file does not exist" in told["1"]
        assert "field 'depth', 4.png: a mask must have one number per pixel" in told["4"]
        assert "field 'depth', 5.png" in told["5"]
    rows[5] = rows[5] | {"depth.key": "0.png"}
    result = run(request_of(directory, [rows[0], *rows[2:4], rows[5]], valkey.unix_url))
    assert "images.parquet::5: field 'mask', masks.tar::5.png: Pillow cannot" in result.messages["3"]


def test_a_request_must_match_its_recipe(source, valkey):
    request = request_of(*source, valkey.unix_url)
    with pytest.raises(ConfigError, match="has the fields"):
        run(replace(request, fields=("mask", "depth")))
    with pytest.raises(ConfigError, match="in this function"):
        run(replace(request, versions=(*request.versions[:-1], "other")))
