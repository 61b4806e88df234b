"""A pipeline in two parts, end to end: functions do the beginning, the dataset's transform the rest."""

from __future__ import annotations

import pytest
import torch
from PIL import Image

from superdl.sampler import SuperSampler
from superdl.super_dataset import SuperDataset, SuperLoader, split_transform
from tests.fixtures.torchvision import torchvision_transforms
from tests.integration.delivery import assert_exactly_once

v1 = torchvision_transforms()
if v1 is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)

CUBIC = v1.InterpolationMode.BICUBIC
PIPELINES = {
    "two sides": [v1.Resize(40, CUBIC), v1.CenterCrop((36, 28)), v1.ToTensor()],
    "grey": [v1.Resize((24, 30)), v1.Grayscale(), v1.ToTensor(), v1.Normalize((0.5,), (0.5,))],
}


@pytest.mark.parametrize("name", PIPELINES)
def test_pixels_are_those_of_the_whole_pipeline(name, shared_stack, images):
    pipeline = v1.Compose(PIPELINES[name])
    parts = split_transform(pipeline)
    rest = parts.rest

    def finish(batch, labels, _):
        return torch.stack([rest(v1.ToPILImage()(image)) for image in batch]), labels

    classes = sorted(folder.name for folder in images.iterdir())
    expected = {
        pipeline(Image.open(path).convert("RGB")).numpy().tobytes(): classes.index(path.parent.name)
        for path in images.glob("*/*.jpg")
    }
    dataset = SuperDataset(images, parts.recipe, transform=finish)
    with SuperSampler(dataset, batch_size=16, shuffle=True, coordinator=shared_stack.address) as sampler:
        delivered = [
            (image.numpy().tobytes(), int(label))
            for batch, labels in SuperLoader(dataset, sampler)
            for image, label in zip(batch, labels, strict=True)
        ]
    assert_exactly_once(delivered, expected)
