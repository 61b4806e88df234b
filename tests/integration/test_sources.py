"""Whole epochs from every kind of source: S3 prefixes, key lists, directories with bad files."""

import pytest
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from superdl.super_wire.errors import BadSampleError, SourceForbiddenError, SourceNotFoundError
from tests.fixtures.images import SIDE, expected_pixels, write_images
from tests.fixtures.stack import Stack
from tests.integration.delivery import assert_exactly_once, collect, epoch_of

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
    delivered = epoch_of(images.as_uri(), RECIPE, shared_stack.address, key_list=key_list.as_uri())
    every = expected_pixels(images, resize=SIDE, crop=SIDE)
    assert len(delivered) == 20
    assert sorted(label for _, label in delivered) == [number / 2 for number in range(20)]
    assert all(pixels in every for pixels, _ in delivered)


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
