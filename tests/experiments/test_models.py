"""Models: shapes, sizes and layouts that they take."""

from __future__ import annotations

import pytest
import torch

from experiments.models import build_model
from super_wire.errors import ConfigError

CPU = torch.device("cpu")


@pytest.mark.parametrize("size", [(64, 64), (8, 8), (37, 90)])
def test_the_small_cnn_takes_uint8_of_any_size(size):
    model = build_model("small_cnn", 7, CPU).eval()
    images = torch.randint(0, 256, (3, 3, *size), dtype=torch.uint8)
    assert model(images).shape == (3, 7)
    assert model(images).dtype == torch.float32


def test_layout_of_the_images_does_not_matter():
    torch.manual_seed(0)
    model = build_model("small_cnn", 5, CPU).eval()
    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    torch.testing.assert_close(model(images), model(images.contiguous(memory_format=torch.channels_last)))


def test_weights_are_channels_last():
    model = build_model("small_cnn", 5, CPU)
    weights = [parameter for parameter in model.parameters() if parameter.dim() == 4]
    assert weights
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)


def test_unknown_names_and_too_few_classes_are_refused():
    with pytest.raises(ConfigError, match=r"model\.name must be one of small_cnn, not 'vgg'"):
        build_model("vgg", 10, CPU)
    with pytest.raises(ConfigError, match="the data has 1 class"):
        build_model("small_cnn", 1, CPU)
