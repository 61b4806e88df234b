"""``Augment`` is reproducible and new in each epoch, with clear errors for unsupported input."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import superdl.super_dataset.augment.transform as module
from superdl.super_dataset import Augment
from superdl.super_wire.errors import ConfigError, UsageError
from tests.super_dataset.augmenting import batch, info_of, picture

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
JITTER = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}


@given(
    numbers=st.lists(st.integers(0, 20), min_size=1, max_size=8),
    jitter=st.booleans(),
    size=st.sampled_from([None, 24, (20, 30)]),
    seed=st.integers(-5, 5),
    epoch=st.integers(0, 5),
)
def test_samples_are_augmented_independently_of_their_batch(numbers, jitter, size, seed, epoch):
    augment = Augment(size, seed=seed, mean=MEAN, std=STD, **(JITTER if jitter else {}))
    together = augment.images(batch(*numbers), info_of(*numbers, epoch=epoch))
    for at, number in enumerate(numbers):
        alone = augment.images(batch(number), info_of(number, epoch=epoch))
        assert torch.equal(alone[0], together[at])


def test_every_epoch_seed_and_sample_differs():
    same = batch(1, 1)
    made = [
        Augment(24, seed=seed).images(same, info_of(7, 8, epoch=epoch)) for seed in (0, 1) for epoch in (0, 1)
    ]
    every = [image for images in made for image in images]
    assert len({image.numpy().tobytes() for image in every}) == 8


@pytest.mark.parametrize("extra", [{}, {"brightness": 0.0}, {"brightness": (1.0, 1.0), "hue": (0.0, 0.0)}])
def test_neutral_augmentation_returns_the_image(extra):
    images = batch(1, 2, 3, height=32, width=32)
    for size, kept in ((32, {"scale": (1, 1), "ratio": (1, 1)}), (None, {})):
        augment = Augment(size, flip=0, dtype=torch.uint8, **kept, **extra)
        assert torch.equal(augment.images(images, info_of(1, 2, 3)), images)
    as_floats = Augment(flip=0).images(images, info_of(1, 2, 3))
    assert torch.allclose(as_floats, images.float() / 255, atol=1e-6)


def test_flips_are_exact_and_have_the_given_probability():
    images = batch(*range(400), height=4, width=6)
    numbers = range(400)
    assert torch.equal(Augment(flip=1, dtype=torch.uint8).images(images, info_of(*numbers)), images.flip(-1))
    some = Augment(flip=0.25, dtype=torch.uint8).images(images, info_of(*numbers))
    flipped = [torch.equal(made, image.flip(-1)) for made, image in zip(some, images, strict=True)]
    kept = [torch.equal(made, image) for made, image in zip(some, images, strict=True)]
    assert all(a != b for a, b in zip(flipped, kept, strict=True))
    assert 70 <= sum(flipped) <= 130  # 3.5 standard deviations


@pytest.mark.parametrize("jitter", [{}, JITTER], ids=["plain", "jitter"])
@pytest.mark.parametrize("size", [None, 24])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.uint8])
def test_results_have_the_given_dtype_layout_and_normalisation(dtype, size, jitter):
    images, info = batch(1, 2, 3), info_of(1, 2, 3)
    grey = Augment(size, dtype=torch.uint8, **jitter).images(images, info).float()
    normal = {} if dtype == torch.uint8 else {"mean": MEAN, "std": STD}
    made = Augment(size, dtype=dtype, **normal, **jitter).images(images, info)
    assert made.dtype == dtype
    assert made.shape == (3, 3, *((24, 24) if size else (48, 40)))
    assert made.is_contiguous(memory_format=torch.channels_last)
    expected = grey
    if normal:
        mean, std = torch.tensor(MEAN)[:, None, None], torch.tensor(STD)[:, None, None]
        expected = (grey / 255 - mean) / std
    rounding = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.uint8: 0}[dtype]
    jittered = 0.5 / 255 / min(STD) if normal and jitter else 0  # uint8 images are rounded, floats not
    assert (made.float() - expected).abs().max() <= rounding + jittered


def test_images_of_different_sizes_form_one_batch():
    ragged = [picture(1, 30, 50), picture(2, 64, 20), picture(3, 24, 24)]
    augment = Augment(24, dtype=torch.uint8, **JITTER)
    made = augment.images(ragged, info_of(1, 2, 3))
    assert made.shape == (3, 3, 24, 24)
    for at, image in enumerate(ragged):
        assert torch.equal(augment.images(image[None], info_of(at + 1))[0], made[at])


def compare_with_device_way(augment, images, info, monkeypatch, device="cpu"):
    """Compare the results on the host with those of the code path for devices."""
    host = augment.images(images, info)
    with monkeypatch.context() as patched:
        if device == "cpu":
            patched.setattr(Augment, "_on_host", Augment._on_device)
            patched.setattr(module, "_DEVICE_BYTES", 200_000)  # a few samples per step
        there = [i.to(device) for i in images] if isinstance(images, list) else images.to(device)
        made = augment.images(there, info)
        assert made.device.type == device
        return host.float(), made.cpu().float()


DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
    ),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [None, 24, (60, 20)])
def test_the_device_version_equals_the_cpu_version_up_to_rounding(size, device, monkeypatch):
    numbers = list(range(30))
    images, info = batch(*numbers), info_of(*numbers)
    host, made = compare_with_device_way(Augment(size, dtype=torch.uint8), images, info, monkeypatch, device)
    differ = (host - made).abs()
    assert differ.max() <= (2 if size else 0)
    assert (differ > 1).float().mean() < 1e-3
    augment = Augment(size, mean=MEAN, std=STD, **JITTER)
    host, made = compare_with_device_way(augment, images, info, monkeypatch, device)
    levels = (host - made).abs() * min(STD) * 255
    assert levels.mean() < 0.05
    assert levels.quantile(0.999) < 4  # jitter can scale one grey level to a few


@pytest.mark.parametrize("device", DEVICES)
def test_the_device_version_supports_lists_and_autocast(device, monkeypatch):
    ragged = [picture(n, 30 + n, 50 - n) for n in range(5)]
    augment, info = Augment(24, dtype=torch.uint8), info_of(*range(5))
    with torch.autocast(device, dtype=torch.bfloat16):
        host, made = compare_with_device_way(augment, ragged, info, monkeypatch, device)
    assert (host - made).abs().max() <= 2


WRONG = {
    "size must be a side": [{"size": size} for size in (0, 224.5, True, (1, 2, 3))],
    "scale must be a pair": [{"scale": scale} for scale in ((0, 1), (0.5, 0.1), (0.5, 1.5), 0.5)],
    "ratio must be a pair": [{"ratio": (1, float("nan"))}],
    "flip must be a probability": [{"flip": 1.5}, {"flip": "often"}],
    "brightness must be a number not below 0": [{"brightness": -1}],
    "saturation must be a number": [{"saturation": (1, 2, 3)}, {"saturation": (-1, 1)}],
    "hue must be a number from 0 to 0.5": [{"hue": 0.6}, {"hue": (0.1, -0.1)}],
    "mean and std must be given together": [
        {"mean": MEAN},
        {"mean": MEAN, "std": (1, 1)},
        {"mean": [1], "std": [0]},
    ],
    "dtype must be one of": [{"dtype": torch.float64}, {"dtype": "float32"}],
    "uint8 images cannot be normalised": [{"dtype": torch.uint8, "mean": MEAN, "std": STD}],
    "seed must be a signed 64-bit integer": [{"seed": 2**63}, {"seed": 1.0}],
}


@pytest.mark.parametrize(("message", "arguments"), [(m, one) for m, every in WRONG.items() for one in every])
def test_invalid_arguments_are_rejected(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Augment(**arguments)


@pytest.mark.parametrize(
    ("augment", "images", "message"),
    [
        (Augment(24), batch(1)[:0], "torch.uint8 of shape (0, 3, 48, 40)"),
        (Augment(24), torch.zeros(2, 3, 8, 8), "torch.float32 of shape (2, 3, 8, 8)"),
        (Augment(24), torch.zeros(2, 8, 8, 3, dtype=torch.uint8), "1, 3 or 4 channels"),
        (Augment(24), [picture(1), picture(1, channels=1)], "a list of 2"),
        (Augment(), [picture(1, 8, 8), picture(1, 8, 9)], "Set size, or add a crop"),
        (Augment(24), batch(1, 2, 3), "3 images need the BatchInfo of the same batch"),
        (Augment(24, hue=0.1), batch(1, 2, channels=1), "colour jitter needs images with 3 channels"),
        (Augment(24, mean=MEAN, std=STD), batch(1, 2, channels=1), "mean and std have 3 channels"),
    ],
)
def test_unsupported_images_are_rejected(augment, images, message):
    with pytest.raises(UsageError) as caught:
        augment.images(images, info_of(1, 2))
    assert message in str(caught.value)
