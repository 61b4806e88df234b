"""``dataset[i]``: one sample after the transform, whose pixels are those of a batch."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

from superdl import Augment, Recipe, SuperDataset, SuperLoader, SuperSampler
from superdl.super_wire.errors import BadSampleError, UsageError
from tests.fixtures.images import CLASSES, SIDE, independent_decode

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)
BATCH = 16


def noisy(image):
    """Draws from global generators."""
    return torch.from_numpy(np.array(image)) * random.random() + torch.rand(())


def test_an_integer_gives_the_sample_of_a_batch(here, images):
    files = sorted(images.glob("*/*.jpg"), key=lambda path: str(path.relative_to(images)).encode())
    dataset = SuperDataset(images, RECIPE)
    image, _ = dataset[3]  # before anything else is known
    assert image.dtype == torch.uint8
    for place in (3, np.int64(3), torch.tensor(3), 3 - 150):
        again, again_label = dataset[place]
        assert torch.equal(again, image)
        assert (again_label, type(again_label)) == (CLASSES.index(files[3].parent.name), int)
    assert np.array_equal(image.permute(1, 2, 0), independent_decode(files[3], resize=SIDE, crop=SIDE))
    with SuperSampler(dataset, batch_size=BATCH, shuffle=False) as sampler:
        batches = list(SuperLoader(dataset, sampler))
        assert torch.equal(batches[0][0][3], image)
        assert torch.equal(dataset[-1][0], batches[-1][0][-1]), "while a sampler is open"
    part = Subset(dataset, [7, 3])
    assert torch.equal(part[1][0], image)
    for outside in (150, -151):
        with pytest.raises(IndexError, match="the dataset has 150"):
            dataset[outside]


@pytest.mark.parametrize(
    "how",
    [
        {"transform": noisy},
        {"transform": Augment(24)},
        {"return_info": True},
        {"transform": noisy, "columns": {"pixel_values": "images", "labels": "labels"}},
    ],
    ids=["own", "Augment", "info", "columns"],
)
def test_a_sample_is_transformed_as_in_the_first_epoch(here, images, how):
    dataset = SuperDataset(images, RECIPE, **how)
    with SuperSampler(dataset, batch_size=BATCH, shuffle=False) as sampler:
        batch = next(iter(DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=1)))
    sample = dataset[5]
    if isinstance(batch, dict):
        assert torch.equal(sample["pixel_values"], batch["pixel_values"][5])
        assert sample["labels"] == batch["labels"][5]
        return
    assert torch.equal(sample[0], batch[0][5])
    assert sample[1] == batch[1][5]
    assert [info.keys for info in sample[2:]] == [(info.keys[5],) for info in batch[2:]]


def test_other_indices_are_refused_with_words(here, images):
    dataset = SuperDataset(images, RECIPE)
    with pytest.raises(UsageError, match=r"Subset\(dataset, range\(2, 5\)\)"):
        dataset[2:5]
    for loader in (
        DataLoader(dataset, batch_size=None),
        DataLoader(Subset(dataset, [1, 2]), batch_size=None, num_workers=1),
        DataLoader(dataset, batch_size=4),
    ):
        with pytest.raises(UsageError, match="sampler=sampler, batch_size=None"):
            next(iter(loader))


def test_a_bad_sample_is_an_error_whatever_batches_do_with_it(here, tmp_path, images):
    (tmp_path / "ant").mkdir()
    (tmp_path / "ant" / "0.jpg").write_bytes(b"this is no image")
    (tmp_path / "ant" / "1.jpg").write_bytes(next(images.glob("ant/*.jpg")).read_bytes())
    dataset = SuperDataset(tmp_path, RECIPE, on_bad_sample="replace")
    assert dataset[1][0].shape == (3, SIDE, SIDE)
    with pytest.raises(BadSampleError, match=r"ant/0\.jpg"):
        dataset[0]
