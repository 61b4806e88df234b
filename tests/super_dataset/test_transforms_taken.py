"""Signatures decide whether a transform is applied per image, per batch, or rejected."""

import pytest
import torch

from superdl.super_dataset import Augment, PerSample, Recipe, SuperDataset
from superdl.super_dataset.per_sample import for_batches
from superdl.super_wire.errors import ConfigError
from tests.fixtures.torchvision import torchvision_transforms
from tests.super_dataset.test_per_sample import drawn, drawn_by_both


class Open:
    """A transform that accepts any arguments."""

    def __call__(self, *args, **kwargs):
        return args


NOT_TOLD = [
    lambda images, labels: images,
    lambda: None,
    lambda images, labels, info, more: images,
    lambda images, labels, rng: images,
    lambda images, labels, info, rng: images,
    lambda size=224: size,
    lambda size=224, mean=0.0, std=1.0: size,
    lambda images, labels=None, *, info: images,
    lambda *args: args,
    lambda image, *, size: image,
    lambda *, picture: picture,
    Open(),
    PerSample,
    Augment,
    print,
    max,  # Python does not know its parameters
    torch.nn.Bilinear(1, 1, 1),
]


@pytest.mark.parametrize("transform", NOT_TOLD)
def test_ambiguous_transforms_are_rejected_with_a_remedy(transform):
    with pytest.raises(
        ConfigError, match=r"transform=PerSample\(t\)[^$]*def transform\(images, labels, info\)"
    ):
        SuperDataset("/images", Recipe([]), transform=transform)
    PerSample(transform)


def test_signatures_tell_batch_and_image_transforms_apart():
    for transform in (
        *(Augment(8), PerSample(drawn)),
        lambda images, labels, info, more=1: (images, more),
        lambda images, labels, info, *more: (images, more),
        lambda a, b, c=None: (a, b, c),
        lambda images, labels=None, info=None: images,
        lambda images=None, labels=None, info=None: images,
    ):
        assert for_batches(transform) is transform
    for transform in (
        lambda image, mean=0.0, std=1.0: image,
        lambda image, target=None: image,
        lambda image, *more: (image, more),
        lambda image, labels=None, info=None, more=None: image,
        lambda image, generator=None, rng=None: image,
        drawn_by_both,
    ):
        assert isinstance(for_batches(transform), PerSample)


@pytest.mark.parametrize("kind", ["MixUp", "CutMix"])
def test_transforms_that_mix_batches_are_rejected(kind):
    if torchvision_transforms() is None:
        pytest.skip("torchvision is not installed")
    from torchvision.transforms import v2  # after declaring its operators

    mix = getattr(v2, kind)(num_classes=4)
    for make in (
        lambda: SuperDataset("/images", Recipe([]), transform=mix),
        lambda: SuperDataset("/images", Recipe([]), transform=v2.Compose([v2.RandomChoice([mix])])),
        lambda: PerSample(mix),
    ):
        with pytest.raises(ConfigError, match=rf"{kind} mixes .* call it on each batch"):
            make()


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"transform": 3}, "transform"),
        ({"transform": drawn, "seed": 1.0}, "seed"),
        ({"transform": drawn, "seed": True}, "seed"),
        ({"transform": drawn, "seed": 2**63}, "seed"),
        ({"transform": drawn, "takes": "jpeg"}, "takes"),
    ],
)
def test_invalid_arguments_are_named(arguments, name):
    with pytest.raises(ConfigError, match=name):
        PerSample(**arguments)


def test_random_transforms_require_a_seed():
    if torchvision_transforms() is None:
        pytest.skip("torchvision is not installed")
    from torchvision.transforms import v2  # after declaring its operators

    pipeline = v2.Compose([v2.RandomHorizontalFlip(p=1e-9), v2.ToImage()])
    with pytest.raises(ConfigError, match=r"Compose\(RandomHorizontalFlip.* seed=None"):
        PerSample(pipeline, seed=None)
