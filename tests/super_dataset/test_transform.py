"""Pipelines of other makers, unchanged: the pixels that they make of PIL images one by one, bit for bit."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from PIL import Image

from superdl.super_dataset.per_sample import for_batches
from superdl.super_wire.ids import digest128
from tests.fixtures.torchvision import torchvision_transforms
from tests.super_dataset.augmenting import batch, info_of

v1 = torchvision_transforms()
if v1 is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)
from torchvision.transforms import InterpolationMode, functional, v2  # noqa: E402  # after its operators

NUMBERS = (3, 1, 4, 15)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Flip(v2.RandomHorizontalFlip):
    """A user's own."""


def to_floats(kind):
    if kind is v1:
        return [v1.ToTensor(), v1.Normalize(MEAN, STD)]
    return [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]


def training(kind):
    return [
        kind.RandomResizedCrop(24, interpolation=InterpolationMode.BICUBIC),
        kind.RandomHorizontalFlip(),
        kind.RandAugment(),
        kind.RandomApply([kind.ColorJitter(0.4, 0.4, 0.4, 0.1), kind.RandomGrayscale(0.2)]),
        *to_floats(kind),
        kind.RandomErasing(0.5, value="random"),
    ]


PIPELINES = {
    "v1 training": v1.Compose(training(v1)),
    "v2 training": v2.Compose(training(v2)),
    "v1 validation": v1.Compose([v1.Resize(28), v1.CenterCrop(24), *to_floats(v1)]),
    "v2 validation": v2.Compose([v2.Resize(28), v2.CenterCrop(24), *to_floats(v2)]),
    "sequential training": torch.nn.Sequential(v2.TrivialAugmentWide(), v2.PILToTensor()),
    "one of v1": v1.ToTensor(),
    "own of v2, training": v2.Compose([Flip(), v2.PILToTensor()]),
    "function": functional.pil_to_tensor,
}


def by_hand(pipeline, *, epoch):
    """What a loop over PIL images makes that sets the generators as PerSample says."""
    made = []
    info = info_of(*NUMBERS, epoch=epoch)
    for at, image in enumerate(batch(*NUMBERS)):
        words = bytes(8), epoch.to_bytes(8, "little"), info.sample_ids[16 * at : 16 * at + 16]
        random.seed(int.from_bytes(digest128(b"random", *words), "little"))
        np.random.seed(np.frombuffer(digest128(b"numpy", *words), dtype="<u4"))  # noqa: NPY002
        torch.manual_seed(int.from_bytes(digest128(b"torch", *words)[:8], "little"))
        made.append(pipeline(Image.fromarray(image.permute(1, 2, 0).numpy())))
    return made


@pytest.mark.parametrize("name", PIPELINES)
def test_torchvision_s_pixels_are_those_of_a_loop_over_pil_images(name):
    check(PIPELINES[name], fresh="training" in name)


def check(pipeline, *, fresh):
    epochs = []
    for epoch in range(2):
        made, _ = for_batches(pipeline)(batch(*NUMBERS), None, info_of(*NUMBERS, epoch=epoch))
        assert torch.equal(made, torch.stack(by_hand(pipeline, epoch=epoch)))
        assert type(made) is torch.Tensor
        epochs.append(made)
    assert torch.equal(*epochs) != fresh


@pytest.mark.parametrize("training", [True, False])
def test_timm_s_pixels_are_those_of_a_loop_over_pil_images(training):
    data = pytest.importorskip("timm.data")
    pipeline = data.create_transform(
        24, is_training=training, auto_augment="rand-m5-mstd0.5-inc1" if training else None, re_prob=0.25
    )
    check(pipeline, fresh=training)


def test_albumentations_are_seeded_and_given_arrays():
    a = pytest.importorskip("albumentations")
    pipeline = a.Compose(
        [
            a.RandomResizedCrop((24, 24)),
            a.HorizontalFlip(),
            a.VerticalFlip(),
            a.GaussNoise(p=1),
            a.Normalize(),
        ]
    )
    transform = for_batches(pipeline)
    first, _ = transform(batch(*NUMBERS), None, info_of(*NUMBERS))
    assert first.shape == (len(NUMBERS), 24, 24, 3)
    again, _ = transform(batch(*reversed(NUMBERS)), None, info_of(*reversed(NUMBERS)))
    assert torch.equal(first.flip(0), again)
    other, _ = transform(batch(*NUMBERS), None, info_of(*NUMBERS, epoch=1))
    assert not any(torch.equal(*pair) for pair in zip(first, other, strict=True))
    # Steps draw one after another from one generator: flips are not one another's copies.
    ways = a.Compose([a.HorizontalFlip(), a.VerticalFlip()])
    numbers = tuple(range(64))
    made, _ = for_batches(ways)(batch(*numbers), None, info_of(*numbers))
    rows = [image.permute(1, 2, 0) for image in batch(*numbers)]
    drawn = {
        (h, v)
        for row, one in zip(rows, made, strict=True)
        for h in (False, True)
        for v in (False, True)
        if torch.equal(one, row.flip([dim for dim, on in ((1, h), (0, v)) if on]))
    }
    assert len(drawn) == 4
    plain, _ = for_batches(a.Normalize())(batch(*NUMBERS), None, info_of(*NUMBERS))
    by_hand = [a.Normalize()(image=image.permute(1, 2, 0).numpy())["image"] for image in batch(*NUMBERS)]
    assert np.array_equal(plain.numpy(), np.stack(by_hand))
