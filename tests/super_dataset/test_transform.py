"""Transforms that are made for one image are refused where a dataset is made; those for batches are not."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from benchmarks.augment import torchvision_transforms
from superdl.super_dataset import Augment, Recipe, SuperDataset
from superdl.super_wire.errors import ConfigError
from tests.super_dataset.stored_batches import bound_dataset, images, stored

v1 = torchvision_transforms()
if v1 is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)
from torchvision.transforms import functional, v2  # noqa: E402  # after its operators are declared


class Flip(v2.RandomHorizontalFlip):
    """A user's own."""


PREPARED = [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3)]
FOR_ONE_IMAGE = {
    "RandomCrop": v1.Compose([v1.RandomCrop(4)]),
    "ToTensor": v1.ToTensor(),
    "ColorJitter": torch.nn.Sequential(torch.nn.Identity(), v1.ColorJitter(0.2)),
    "hflip": functional.hflip,
    "RandomResizedCrop": v2.RandomResizedCrop(4),
    "RandomHorizontalFlip": v2.Compose([*PREPARED, v2.Compose([v2.RandomHorizontalFlip()])]),
    "Flip": Flip(),
    "RandomApply": v2.RandomApply([v2.Grayscale()]),
    "RandAugment": v2.Compose([v2.RandAugment()]),
    "RandomErasing": v2.RandomErasing(),
    "MixUp": v2.MixUp(num_classes=4),
    "CenterCrop": v2.Compose([v1.CenterCrop(4)]),
}


@pytest.mark.parametrize("name", FOR_ONE_IMAGE)
def test_what_is_made_for_one_image_is_refused_with_the_way_to_do_it(name):
    transform = FOR_ONE_IMAGE[name]
    named = "Compose" if isinstance(transform, v1.Compose) else name
    with pytest.raises(
        ConfigError, match=rf"{named} is made for one image[^?]*Augment\(224\)[^?]*torch.stack"
    ):
        SuperDataset("/images", Recipe.image(resize=8, crop=8), transform=transform)


def test_the_way_that_is_named_draws_for_each_sample(valkey):
    pipeline = v1.Compose([v1.RandomHorizontalFlip(), v1.ConvertImageDtype(torch.float32)])

    def transform(images, labels, info):
        return torch.stack([pipeline(image) for image in images]), labels

    torch.manual_seed(0)
    arrays = images(1) * 32
    batch, labels = bound_dataset(transform=transform)[stored(valkey, arrays)]
    assert (len(labels), batch.dtype) == (32, torch.float32)
    assert len({tuple(image.flatten().tolist()) for image in batch}) == 2


def test_what_of_v2_draws_nothing_takes_a_batch(valkey):
    ref = stored(valkey, images(3))
    plain, _ = bound_dataset()[ref]
    batch, labels, _ = bound_dataset(transform=v2.Compose([*PREPARED, v2.CenterCrop(4)]))[ref]
    assert torch.allclose(batch, (plain.float() / 255 - 0.5).div(0.25)[:, :, 2:6, 2:6], atol=1e-6)
    assert labels.tolist() == [100, 101, 102]


@pytest.mark.parametrize(
    "transform", [None, Augment(8), lambda images, labels, info: images, torch.nn.Identity(), print]
)
def test_what_is_made_for_batches_is_not_refused(transform):
    SuperDataset("/images", Recipe.image(resize=8, crop=8), transform=transform)


def test_torchvision_is_not_imported_for_it():
    program = (
        "import sys; from superdl.super_dataset import Recipe, SuperDataset;"
        "SuperDataset('/images', Recipe.image(resize=8, crop=8), transform=print);"
        "sys.exit('torchvision' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
