"""Both parts of a split pipeline give the pixels of the whole, for torchvision's v1 and v2 and timm."""

import re

import numpy as np
import pytest
import torch
from PIL import Image

from superdl.lambda_prefetch.image_steps import Program
from superdl.super_dataset import PerSample, Recipe, split_transform
from superdl.super_dataset.pictures import split_end
from tests.fixtures.torchvision import torchvision_transforms
from tests.lambda_prefetch.prefetching import pixels
from tests.super_dataset.augmenting import batch, info_of

v1 = torchvision_transforms()
if v1 is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)
from torchvision import models  # noqa: E402  # after its operators are declared
from torchvision.transforms import v2  # noqa: E402  # the same

CUBIC = v1.InterpolationMode.BICUBIC
BOTH = pytest.mark.parametrize("tv", [v1, v2], ids=["v1", "v2"])
SIZES = [(40, 70), (70, 40), (21, 21), (9, 30)]


class Own(v1.Resize):
    """A user's subclass, which may do anything."""


def steps_of(parts):
    return [dict(step) for step in parts.recipe.steps]


def assert_equal_pixels(pipeline, parts):
    """Run the function's part, then the rest on an image made from its array, as in a worker."""
    program = Program(parts.recipe, bucket="b", epoch=0, limit_pixels=10**6, step_modules=frozenset())
    for height, width in SIZES:
        array = program.run(Image.fromarray(pixels(height, width)), "k")
        image = Image.fromarray(array[..., 0] if array.shape[2] == 1 else array)
        made = image if parts.rest is None else parts.rest(image)
        expected = pipeline(Image.fromarray(pixels(height, width)))
        assert np.array_equal(np.asarray(made), np.asarray(expected))


@BOTH
@pytest.mark.parametrize(
    ("resize", "step"),
    [
        ((32,), {"size": 32}),
        (([32],), {"size": 32}),
        (((32, 24),), {"size": [32, 24]}),
        ((32, CUBIC, 36), {"size": 32, "interpolation": "bicubic", "max_size": 36}),
        ((32, Image.Resampling.LANCZOS), {"size": 32, "interpolation": "lanczos"}),
        ((32, v1.InterpolationMode.NEAREST_EXACT), {"size": 32, "interpolation": "nearest"}),
    ],
)
def test_a_resize_becomes_a_step_with_equal_pixels(tv, resize, step):
    pipeline = tv.Compose([tv.Resize(*resize), tv.CenterCrop((24, 30)), v1.ToTensor()])
    parts = split_transform(pipeline)
    assert steps_of(parts) == [{"op": "resize", **step}, {"op": "center_crop", "size": [24, 30]}]
    assert type(parts.rest) is type(pipeline)
    assert_equal_pixels(pipeline, parts)


@BOTH
def test_fixed_transforms_become_steps_and_random_ones_stay(tv):
    pads = [tv.Pad(3), tv.Pad((1, 2)), tv.Pad([1, 2, 3, 4], padding_mode="reflect")]
    fixed = [tv.Compose(pads), tv.Grayscale(), tv.CenterCrop(20)]
    parts = split_transform(tv.Compose([*fixed, tv.RandomHorizontalFlip(), v1.ToTensor()]))
    assert [step["op"] for step in parts.recipe.steps] == ["pad"] * 3 + ["grayscale", "center_crop"]
    assert [type(one).__name__ for one in parts.rest.transforms] == ["RandomHorizontalFlip", "ToTensor"]
    assert "Stopped at RandomHorizontalFlip: functions would have to repeat random steps" in str(parts)
    whole = tv.Compose(fixed)
    assert split_transform(whole).rest is None
    assert_equal_pixels(whole, split_transform(whole))


@BOTH
def test_a_pipeline_with_a_random_beginning_stays_whole(tv):
    pipeline = tv.Compose([tv.RandomResizedCrop(224), tv.RandomHorizontalFlip(), v1.ToTensor()])
    parts = split_transform(pipeline)
    assert (parts.recipe, parts.rest, parts.moved) == (Recipe([]), pipeline, ())
    assert repr(parts) == (
        "recipe: decode only\n"
        "rest: Compose(RandomResizedCrop, RandomHorizontalFlip, ToTensor)\n"
        "Stopped at RandomResizedCrop: functions would have to repeat random steps, and decoding, in each "
        "epoch. The recipe only decodes and keeps whole images. Smaller images, such as those of "
        "Recipe.image(resize=320, reduced_decode=True), cost less to store and read, but change the pixels "
        "that random crops see, so the choice is yours."
    )


@pytest.mark.parametrize(
    ("stops", "why"),
    [
        (Own(8), "recipes have no step for tests.super_dataset.test_splitting.Own"),
        (v1.FiveCrop(8), "recipes have no step for torchvision.transforms.transforms.FiveCrop"),
        (str, "recipes have no step for builtins.str"),
        (v1.Resize(8, antialias=False), "antialias=False only applies to tensors"),
        (v2.Resize(None, max_size=9), "size must be a whole number of pixels"),
        (v1.Resize(20_000), "size must be a whole number of pixels from 1 to 16384"),
        (v1.Pad(1, fill=7), "recipes pad with zeros, not with fill=7"),
        (v2.Pad(1, fill=(0, 0, 255)), r"not with fill=\(0, 0, 255\)"),
        (v2.Pad(1, fill={Image.Image: 3}), "not with fill=.*3"),
        (v1.Pad(-1), "padding must be a whole number"),
        (v2.ToImage(), "recipes only have steps for images"),
        (v1.ToTensor(), "recipes only have steps for images"),
        (v2.ColorJitter(0.5), "repeat random steps"),
        (v2.RandomCrop(8, padding=4), "repeat random steps"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_transform_without_an_exact_step_ends_the_recipe(stops, why):
    parts = split_transform(v1.Compose([v1.Resize(16), stops, v1.CenterCrop(8)]))
    assert steps_of(parts) == [{"op": "resize", "size": 16}]
    assert parts.rest.transforms[0] is stops
    assert re.search(f"Stopped at .*: .*{why}", str(parts))


def test_converting_decoded_images_to_rgb_is_no_step():
    assert split_transform(v2.Compose([v2.RGB(), v2.Resize(8)])).recipe == Recipe.image(resize=8)
    parts = split_transform(v2.Compose([v2.Grayscale(), v2.RGB(), v2.Resize(8)]))
    assert steps_of(parts) == [{"op": "grayscale", "channels": 1}]
    assert [type(one).__name__ for one in parts.rest.transforms] == ["RGB", "Resize"]


def test_the_transforms_of_pretrained_weights_are_split():
    pipeline = models.ResNet50_Weights.IMAGENET1K_V2.transforms(resize_size=32, crop_size=24)
    parts = split_transform(pipeline)
    assert parts.recipe == Recipe.image(resize=32, crop=24)
    assert "Stopped within ImageClassification" in str(parts)
    assert pipeline.resize_size == [32]
    assert_equal_pixels(pipeline, parts)
    images, info = batch(1, 2, height=24, width=24), info_of(1, 2)
    assert split_end(pipeline)[1] is None
    assert split_end(parts.rest)[1] is not None
    for size in (images, batch(1, height=30, width=24)):  # the taller one is cropped, as in the preset
        expected, _ = PerSample(lambda image: parts.rest(Image.fromarray(np.array(image))))(size, None, info)
        assert torch.equal(PerSample(parts.rest)(size, None, info)[0], expected)


@pytest.mark.parametrize(
    ("arguments", "ops", "stopped"),
    [
        ({"interpolation": "bicubic"}, ["resize", "center_crop"], "MaybeToTensor: recipes only have steps"),
        ({"crop_mode": "squash", "crop_pct": 0.9}, ["resize", "center_crop"], "MaybeToTensor"),
        ({"is_training": True, "no_aug": True}, ["resize", "center_crop"], "MaybeToTensor"),
        ({"is_training": True}, [], "RandomResizedCropAndInterpolation: .*random steps.*choice is yours"),
        ({"crop_mode": "border"}, [], "ResizeKeepRatio: recipes have no step"),
    ],
)
def test_timm_pipelines_are_split(arguments, ops, stopped):
    data = pytest.importorskip("timm.data")
    pipeline = data.create_transform(24, **arguments)
    parts = split_transform(pipeline)
    assert [step["op"] for step in parts.recipe.steps] == ops
    assert re.search(f"Stopped at {stopped}", str(parts))
    if not arguments.get("is_training") or "no_aug" in arguments:
        assert_equal_pixels(pipeline, parts)
