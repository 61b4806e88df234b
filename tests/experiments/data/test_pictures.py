"""The pictures: what decides them, what their files are, and that their classes can be learnt."""

from __future__ import annotations

import io
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import cross_entropy

from superdl.experiments.data.pictures import (
    DISTINCT_CLASSES,
    colour_mode,
    picture_file,
    picture_pixels,
)
from superdl.experiments.image_sets import MADE_SETS
from superdl.experiments.models import build_model
from superdl.lambda_prefetch.decode import decode
from tests.experiments.data.small_sets import drawn

LIMIT_PIXELS = 1_000_000


@pytest.fixture
def one_thread():
    """Torch's threads wait for each other by spinning, which takes ages where other tests run too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("made", MADE_SETS.values(), ids=MADE_SETS)
def test_a_file_is_what_the_table_says(made):
    assert made.classes <= DISTINCT_CLASSES
    contents = [picture_file(made, 0, "val", index) for index in range(24)]
    assert np.mean([len(content) for content in contents]) == pytest.approx(made.image_bytes, rel=0.2)
    for content in contents:
        with Image.open(io.BytesIO(content)) as image:
            assert image.size in made.sizes
            assert image.format == ("PNG" if made.extension == "png" else "JPEG")
        assert decode(content, limit_pixels=LIMIT_PIXELS).mode == "RGB"


def test_seed_split_and_index_decide_a_picture_and_nothing_else_does():
    made = MADE_SETS["cifar10-like"]
    first = picture_file(made, 0, "train", 7)
    picture_file(made, 1, "val", 3)
    assert picture_file(made, 0, "train", 7) == first
    others = {picture_file(made, *one) for one in ((1, "train", 7), (0, "val", 7), (0, "train", 17))}
    assert len(others | {first}) == 4


def test_a_share_of_the_files_is_dirty_as_in_the_real_sets():
    made = MADE_SETS["imagenet-like"]
    modes = Counter(colour_mode(made, index) for index in range(made.train))
    assert modes["L"] == round(0.018 * made.train)
    assert modes["CMYK"] == pytest.approx(0.002 * made.train, abs=2)
    grey = [index for index in range(1000) if colour_mode(made, index) == "L"]
    assert len({index % made.classes for index in grey}) > 5, "of many classes"
    for mode in ("L", "CMYK"):
        index = next(index for index in range(1000) if colour_mode(made, index) == mode)
        content = picture_file(made, 0, "train", index)
        with Image.open(io.BytesIO(content)) as image:
            assert (image.format, image.mode) == ("JPEG", mode)
        pixels = np.asarray(decode(content, limit_pixels=LIMIT_PIXELS), dtype=float)
        expected = picture_pixels(made, 0, "train", index).astype(float)
        assert abs(pixels.mean() - expected.mean()) < 6, "upright and not inverted"
    assert {colour_mode(MADE_SETS["mnist-like"], index) for index in range(99)} == {"L"}


@pytest.mark.usefixtures("one_thread")
def test_classes_are_learnt_by_a_small_network_and_not_by_mean_colours():
    """Ten classes: chance is 0.1."""
    made = MADE_SETS["cifar10-like"]
    images, labels = drawn(made, "train", 1000)
    val_images, val_labels = drawn(made, "val", 200)

    def means(of):
        return of.mean(axis=(2, 3))

    centres = np.stack([means(images[labels == label]).mean(axis=0) for label in range(10)])
    nearest = np.linalg.norm(means(val_images)[:, None] - centres[None], axis=2).argmin(axis=1)
    assert (nearest == val_labels).mean() < 0.25

    torch.manual_seed(0)
    model = build_model("small_cnn", 10, torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(0)).repeat(2)  # two epochs
    for chosen in order.split(25):
        optimizer.zero_grad()
        cross_entropy(model(torch.from_numpy(images)[chosen]), torch.from_numpy(labels)[chosen]).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        guessed = model(torch.from_numpy(val_images)).argmax(dim=1).numpy()
    assert (guessed == val_labels).mean() > 0.45
