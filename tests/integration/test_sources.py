"""Whole epochs from every kind of source: S3 prefixes, key lists, directories with bad files."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from superdl.super_wire.errors import BadSampleError, SourceForbiddenError, SourceNotFoundError
from tests.fixtures.images import SIDE, expected_pixels, write_images
from tests.fixtures.stack import Stack
from tests.integration.delivery import assert_exactly_once, collect

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)


def test_an_s3_prefix(photos, images):
    with Stack(arguments=("--slots", "2")) as stack:
        dataset = SuperDataset(photos, RECIPE)
        with SuperSampler(dataset, batch_size=16, shuffle=True, coordinator=stack.address) as sampler:
            assert dataset.classes == ("ant", "bee", "cat", "dog")
            loader = DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=2)
            for _ in range(2):
                assert_exactly_once(collect(loader), expected_pixels(images, resize=SIDE, crop=SIDE))
            stats = sampler.job_stats()
        assert stats.samples_produced == 150
        assert stats.source_bytes == sum(path.stat().st_size for path in images.glob("*/*.jpg"))
        with pytest.raises(SourceNotFoundError, match="no-such-bucket"):
            SuperSampler(
                SuperDataset("s3://no-such-bucket/train", RECIPE),
                batch_size=16,
                shuffle=True,
                coordinator=stack.address,
            )


def test_a_wrong_secret(photos, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret")
    with Stack() as stack:
        with pytest.raises(SourceForbiddenError, match=photos) as caught:
            SuperSampler(SuperDataset(photos, RECIPE), batch_size=16, shuffle=True, coordinator=stack.address)
        assert "another-secret" not in str(caught.value)


def test_a_key_list_chooses_samples_and_labels(shared_stack, images, tmp_path):
    chosen = sorted(images.glob("bee/*.jpg"))[:10] + sorted(images.glob("dog/*.jpg"))[:10]
    rows = [f"{path.relative_to(images)},{number / 2}" for number, path in enumerate(chosen)]
    key_list = tmp_path / "chosen.csv"
    key_list.write_text("key,label\n" + "\n".join(rows) + "\n")
    dataset = SuperDataset(images.as_uri(), RECIPE, key_list=key_list.as_uri())
    with SuperSampler(dataset, batch_size=8, shuffle=True, coordinator=shared_stack.address) as sampler:
        delivered = collect(DataLoader(dataset, sampler=sampler, batch_size=None))
    every = expected_pixels(images, resize=SIDE, crop=SIDE)
    assert len(dataset) == len(delivered) == 20
    assert sorted(label for _, label in delivered) == [number / 2 for number in range(20)]
    assert all(pixels in every for pixels, _ in delivered)


@pytest.fixture
def dirty(tmp_path):
    """Twelve good images of unusual kinds, and three files that nobody can decode."""
    directory = write_images(tmp_path / "dirty", 8)
    pixels = np.arange(SIDE * SIDE, dtype=np.uint32).reshape(SIDE, SIDE) % 251
    grey = Image.fromarray(pixels.astype(np.uint8))
    grey.save(directory / "ant" / "grey.jpg")
    grey.convert("CMYK").save(directory / "bee" / "cmyk.jpg")
    grey.convert("RGB").quantize(16).save(directory / "cat" / "palette.png")
    grey.convert("RGBA").save(directory / "dog" / "alpha.png")
    (directory / "ant" / "empty.jpg").write_bytes(b"")
    (directory / "bee" / "text.jpg").write_text("this is no image")
    whole = next((directory / "cat").glob("0*.jpg")).read_bytes()
    (directory / "cat" / "truncated.jpg").write_bytes(whole[: len(whole) // 2])
    return directory


def test_skipping_bad_samples_delivers_all_others(shared_stack, dirty):
    dataset = SuperDataset(dirty.as_uri(), RECIPE, on_bad_sample="skip", return_info=True)
    with SuperSampler(
        dataset, batch_size=4, shuffle=True, seed=2, coordinator=shared_stack.address
    ) as sampler:
        delivered, bad = 0, []
        for images, labels, info in DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=2):
            assert images.shape[1:] == (3, SIDE, SIDE)
            assert len(images) == len(labels)
            delivered += len(images)
            bad += [key for key, _ in info.bad]
    assert delivered == 12
    assert sorted(bad) == ["ant/empty.jpg", "bee/text.jpg", "cat/truncated.jpg"]


def test_a_file_that_changes_after_listing_is_told(shared_stack, tmp_path):
    directory = write_images(tmp_path / "images", 8)
    dataset = SuperDataset(directory.as_uri(), RECIPE, read_timeout=60)
    with SuperSampler(dataset, batch_size=8, shuffle=False, coordinator=shared_stack.address) as sampler:
        first = next(iter(DataLoader(dataset, sampler=sampler, batch_size=None)))
        assert len(first[0]) == 8
        with shared_stack.valkey.client() as client:
            client.unlink(*client.keys("super:r1:*"))
        changed = directory / "ant" / "00000.jpg"
        changed.write_bytes(changed.read_bytes() + b"more")
        told = r"ant/00000\.jpg.*changed since it was listed at 20\d\d-"
        with pytest.raises(BadSampleError, match=told):
            collect(DataLoader(dataset, sampler=sampler, batch_size=None))


def test_linked_classes_and_images_are_trained_on(shared_stack, tmp_path, caplog):
    """One class is a link, and so is an image; both lie on another disk, so to say."""
    elsewhere = write_images(tmp_path / "elsewhere", 12)
    directory = tmp_path / "images"
    shutil.copytree(elsewhere, directory)
    shutil.rmtree(directory / "bee")
    (directory / "bee").symlink_to(elsewhere / "bee")
    linked = next((directory / "cat").iterdir())
    linked.unlink()
    linked.symlink_to(elsewhere / "cat" / linked.name)
    dataset = SuperDataset(directory, Recipe.image(resize=SIDE, crop=SIDE))
    with SuperSampler(dataset, batch_size=4, shuffle=True, coordinator=shared_stack.address) as sampler:
        delivered = collect(DataLoader(dataset, sampler=sampler, batch_size=None))
    assert tuple(dataset.classes or ()) == ("ant", "bee", "cat", "dog")
    assert_exactly_once(delivered, expected_pixels(elsewhere, resize=SIDE, crop=SIDE))
    told = [
        record.message for record in caplog.records if "lead out of it and are followed" in record.message
    ]
    assert len(told) == 1
    assert f"2 symbolic links lead out of it and are followed, to {elsewhere}/bee" in told[0]


def test_links_out_of_the_operators_directories_are_refused(tmp_path):
    elsewhere = write_images(tmp_path / "elsewhere", 8)
    directory = write_images(tmp_path / "images", 8)
    (directory / "eel").symlink_to(elsewhere / "cat")
    with Stack(arguments=("--file-roots", str(directory))) as stack:
        dataset = SuperDataset(directory, Recipe.image(resize=SIDE, crop=SIDE))
        with pytest.raises(SourceForbiddenError, match=rf"lead out of it.*: {directory}/eel\. .*FILE_ROOTS"):
            SuperSampler(dataset, batch_size=4, shuffle=True, coordinator=stack.address)
