"""Transforms that are made for one image are refused where a dataset is made; those for batches are not."""

from __future__ import annotations

import pytest
import torch

from benchmarks.augment import torchvision_transforms
from superdl.super_dataset import Augment, Recipe, SuperDataset
from superdl.super_wire.errors import ConfigError

v1 = torchvision_transforms()
if v1 is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)
from torchvision.transforms import functional, v2  # noqa: E402  # after its operators are declared


class Flip(v2.RandomHorizontalFlip):
    """A user's own."""


FOR_ONE_IMAGE = {
    "ToTensor": v1.ToTensor(),
    "hflip": functional.hflip,
    "RandomResizedCrop": v2.RandomResizedCrop(4),
    "Flip": Flip(),
    "Compose": v2.Compose([v2.RandAugment()]),
}


@pytest.mark.parametrize("name", FOR_ONE_IMAGE)
def test_what_is_made_for_one_image_is_refused_with_the_way_to_do_it(name):
    match = rf"{name} is made for one image[^?]*Augment\(224\)[^?]*torch.stack"
    with pytest.raises(ConfigError, match=match):
        SuperDataset("/images", Recipe.image(resize=8, crop=8), transform=FOR_ONE_IMAGE[name])


@pytest.mark.parametrize(
    "transform", [None, Augment(8), lambda images, labels, info: images, torch.nn.Identity(), print]
)
def test_what_is_made_for_batches_is_not_refused(transform):
    SuperDataset("/images", Recipe.image(resize=8, crop=8), transform=transform)
