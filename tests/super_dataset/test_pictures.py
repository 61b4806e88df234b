"""torchvision pipelines give identical bits, whole or split."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from superdl.super_dataset import PerSample
from superdl.super_dataset.memory.batch_memory import RecycledMemory, map_tensors, receiving_into
from superdl.super_dataset.per_sample import for_batches
from superdl.super_dataset.pictures import split_end
from superdl.super_dataset.splitting import may_use_rng
from tests.fixtures.torchvision import torchvision_transforms
from tests.super_dataset.augmenting import batch, info_of, picture

if torchvision_transforms() is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)

from torchvision import transforms as v1  # after declaring its operators
from torchvision.transforms import v2

NUMBERS = (3, 1, 4, 15)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class ToNumpy:
    """timm's, made for its prefetcher."""

    __module__ = "timm.data.transforms"

    def __call__(self, image):
        return np.rollaxis(np.array(image, dtype=np.uint8), 2)


BEGINNINGS = {
    "nothing": [],
    "resized crop": [v1.RandomResizedCrop(24), v1.RandomHorizontalFlip()],
    "resized crop, v2": [v2.RandomResizedCrop(24), v2.RandomHorizontalFlip()],
    "crop": [v1.RandomCrop(17)],
    "padded crop": [v1.RandomCrop(40, padding=7, fill=3)],
    "resize": [v1.Resize(30), v1.CenterCrop(28)],
    "colours": [v2.Compose([v1.ColorJitter(0.4, 0.4, 0.4), v1.RandomRotation(20)])],
    "grey": [v1.Grayscale()],
}
SHORTER = {
    "v1": [v1.ToTensor(), v1.Normalize(MEAN, STD)],
    "by tensors": [v1.ToTensor(), v1.Normalize(torch.tensor(MEAN), torch.tensor(STD), inplace=True)],
    "one of each": [v1.ToTensor(), v1.Normalize(0.5, 0.25)],
    "no moments": [v1.ToTensor()],
    "bytes": [v1.PILToTensor()],
    "converted": [v1.PILToTensor(), v1.ConvertImageDtype(torch.float32), v1.Normalize(MEAN, STD)],
    "v2": [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)],
    "references": [
        v2.PILToTensor(),
        v2.ToDtype(torch.float, scale=True),
        v2.Normalize(MEAN, STD),
        v2.ToPureTensor(),
    ],
    "timm": [ToNumpy()],
}
AS_THEY_ARE = {
    "half": [v1.ToTensor(), v1.ConvertImageDtype(torch.float16)],
    "unscaled": [v2.ToImage(), v2.ToDtype(torch.float32), v2.Normalize(MEAN, STD)],
    "twice": [v1.ToTensor(), v1.Normalize(MEAN, STD), v1.Normalize(MEAN, STD)],
    "more": [v1.ToTensor(), v1.Normalize(MEAN, STD), v1.RandomErasing(p=1)],
    "none": [v1.functional.to_tensor],
}


@given(
    beginning=st.sampled_from(sorted(BEGINNINGS)),
    end=st.sampled_from(sorted(SHORTER | AS_THEY_ARE)),
    height=st.integers(1, 70),
    width=st.integers(1, 70),
    channels=st.sampled_from([1, 3, 3, 3]),
)
def test_results_equal_the_pipeline_s_bit_by_bit(beginning, end, height, width, channels):
    pipeline = v1.Compose([*BEGINNINGS[beginning], *(SHORTER | AS_THEY_ARE)[end]])
    assert_every_bit(pipeline, batch(1, 2, 3, height=height, width=width, channels=channels))


def assert_every_bit(pipeline, images):
    """Assert bit-identical results to the pipeline on single PIL images, or the same error."""
    info = info_of(1, 2, 3)

    def plainly(image):
        return pipeline(Image.fromarray(np.array(image)))

    try:
        expected, _ = PerSample(plainly, seed=1)(images, None, info)
    except (RuntimeError, TypeError, ValueError) as error:  # such as a crop larger than the image
        with pytest.raises(type(error)):
            PerSample(pipeline, seed=1)(images, None, info)
        return
    made, _ = PerSample(pipeline, seed=1)(images, None, info)
    assert len(made) == len(expected)
    for one, other in zip(made, expected, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


@pytest.mark.parametrize("training", [True, False])
def test_results_equal_timm_s_bit_by_bit(training):
    data = pytest.importorskip("timm.data")
    augment = "rand-m5-mstd0.5-inc1" if training else None
    assert_every_bit(
        data.create_transform(24, is_training=training, auto_augment=augment, re_prob=0.25), batch(1, 2, 3)
    )


@pytest.mark.parametrize("end", sorted(AS_THEY_ARE))
def test_other_pipelines_are_not_split(end):
    pipeline = v1.Compose(AS_THEY_ARE[end])
    assert split_end(pipeline) == (pipeline, None)


@pytest.mark.parametrize("end", sorted(SHORTER))
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_end_can_run_later_and_elsewhere(end, device):
    pipeline = v1.Compose([v1.RandomCrop(17), *SHORTER[end]])
    images, info = batch(1, 2, 3), info_of(1, 2, 3)
    expected, _ = PerSample(pipeline)(images, None, info)
    with receiving_into(RecycledMemory(), finished_elsewhere=True):
        item = PerSample(pipeline)(images, "labels", info)
    unfinished = item[0].images
    assert (unfinished.dtype, unfinished.shape) == (torch.uint8, (3, 3, 17, 17))
    made = map_tensors(item, lambda one: one.to(device))[0]
    assert (made.dtype, made.shape, made.device.type) == (expected.dtype, expected.shape, device)
    assert device == "meta" or torch.equal(made, expected)
    if expected.dtype == torch.float32:  # what other devices compute, run here
        assert torch.equal(split_end(pipeline)[1].look_up(unfinished), expected)


@given(sizes=st.lists(st.sampled_from([(9, 9, 3), (9, 9, 1), (8, 9, 3)]), min_size=1, max_size=4))
def test_mixed_batches_are_finished_at_once(sizes):
    pipeline = v1.Compose(SHORTER["no moments"])
    images = [picture(n, *size) for n, size in enumerate(sizes)]
    info = info_of(*range(len(images)))
    expected, _ = PerSample(pipeline)(images, None, info)
    with receiving_into(RecycledMemory(), finished_elsewhere=True):
        item = PerSample(pipeline)(images, None, info)
    for one, other in zip(map_tensors(item, lambda one: one)[0], expected, strict=True):
        assert torch.equal(one, other)


class RandAugment:
    """timm's, whose generators differ from those of torchvision's class of this name."""

    __module__ = "timm.data.auto_augment"


class OwnCrop(v1.RandomResizedCrop):
    """A user's subclass, which may do anything."""


def test_random_transforms_are_recognised_by_exact_class():
    assert not may_use_rng(v1.Compose([v1.Resize(30), *SHORTER["v1"]]))
    assert may_use_rng(v2.Compose([v2.RandomResizedCrop(24), v1.ColorJitter(0.4)]))
    for unknown in (RandAugment(), OwnCrop(24), v1.RandomChoice([v1.Resize(9)]), v1.RandomOrder([]), print):
        assert may_use_rng(v1.Compose([v1.Resize(24), unknown]))


def test_albumentations_get_arrays_and_seeds():
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
    # Steps draw in turn from one generator: two flips must not be copies of each other.
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
