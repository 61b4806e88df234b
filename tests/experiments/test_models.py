"""Models: shapes, sizes and layouts that they take."""

from __future__ import annotations

import sys

import pytest
import torch

from superdl.experiments.models import build_model
from superdl.experiments.spec import MODEL_NAMES
from superdl.super_wire.errors import ConfigError

CPU = torch.device("cpu")
MILLION = 1_000_000


def random_images(side: int, count: int = 2) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8)


@pytest.mark.parametrize("size", [(64, 64), (8, 8), (37, 90)])
def test_the_small_cnn_takes_uint8_of_any_size(size):
    model = build_model("small_cnn", 7, CPU).eval()
    images = torch.randint(0, 256, (3, 3, *size), dtype=torch.uint8)
    assert model(images).shape == (3, 7)
    assert model(images).dtype == torch.float32


@pytest.mark.parametrize(
    ("name", "side", "parameters"),
    [("resnet18", 40, 11.2), ("resnet50", 40, 23.5), ("vit_b_32", 64, 87.4), ("vit_mini", 64, 0.564)],
)
def test_torchvisions_models_take_uint8_and_have_their_size(name, side, parameters):
    model = build_model(name, 7, CPU, side=side).eval()
    with torch.inference_mode():
        logits = model(random_images(side))
    assert (logits.shape, logits.dtype) == ((2, 7), torch.float32)
    assert sum(parameter.numel() for parameter in model.parameters()) / MILLION == pytest.approx(
        parameters, rel=0.01
    )


@pytest.mark.parametrize("name", ["small_cnn", "resnet18", "vit_mini"])
def test_layout_of_the_images_does_not_matter_and_weights_are_channels_last(name):
    torch.manual_seed(0)
    model = build_model(name, 5, CPU, side=32).eval()
    images = random_images(32, 4)
    weights = [parameter for parameter in model.parameters() if parameter.dim() == 4]
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)
    torch.testing.assert_close(model(images), model(images.contiguous(memory_format=torch.channels_last)))


def test_images_are_normalised_as_torchvision_does_it():
    from torchvision.transforms.functional import normalize

    model = build_model("vit_mini", 5, CPU, side=16).eval()
    images = random_images(16, 3)
    normalised = normalize(images.float() / 255, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    torch.testing.assert_close(model(images), model.network(normalised))


def test_unknown_names_and_too_few_classes_are_refused():
    with pytest.raises(ConfigError, match=rf"model\.name must be one of {', '.join(MODEL_NAMES)}, not 'vgg'"):
        build_model("vgg", 10, CPU)
    with pytest.raises(ConfigError, match="the data has 1 class"):
        build_model("small_cnn", 1, CPU)


def test_a_transformer_says_which_images_it_takes():
    with pytest.raises(
        ConfigError, match=r"patches of 8 pixels: set recipe\.crop to a multiple of it, not 60"
    ):
        build_model("vit_mini", 10, CPU, side=60)
    model = build_model("vit_mini", 10, CPU, side=32)
    with pytest.raises(ConfigError, match="made for images of 32 x 32 pixels .* got 40 x 40"):
        model(random_images(40))


def test_without_torchvision_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    with pytest.raises(ConfigError, match=r"pip install 'superdl\[vision\]'"):
        build_model("resnet18", 10, CPU)
