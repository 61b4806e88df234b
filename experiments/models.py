"""The models that a spec may name: each takes uint8 images as they come and normalises them on the device.

Those of torchvision are made in `experiments.vision_models`, pretrained weights read in
`experiments.weights`; training is left to `experiments.training`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from superdl.experiments.spec import MODEL_NAMES
from superdl.experiments.vision_models import make_vision_model
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SmallCNN", "build_model", "small_cnn"]

_CLASSES_MIN = 2


class SmallCNN(nn.Module):
    """Four 3x3 convolutions with batch norm, three of which halve the image, an average, a linear layer.

    Takes uint8 [N, 3, H, W] of any H and W from 8 on, contiguous or channels_last; gives float [N, classes].
    """

    def __init__(self, num_classes: int, width: int = 24) -> None:
        """Make the layers, with ``width`` channels in the first."""
        super().__init__()
        self.features = nn.Sequential(
            _convolution(3, width, stride=2),
            _convolution(width, 2 * width, stride=2),
            _convolution(2 * width, 4 * width, stride=2),
            _convolution(4 * width, 4 * width, stride=1),
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(4 * width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of uint8 images."""
        centred = images.float().sub(127.5).div(64.0)  # grey levels to about [-2, 2]
        logits: Tensor = self.classifier(self.pool(self.features(centred)).flatten(1))
        return logits


def _convolution(channels_in: int, channels_out: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, kernel_size=3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(inplace=True),
    )


def small_cnn(num_classes: int) -> nn.Module:
    """Make the small CNN: it learns the digits to about 0.98 in three epochs, in seconds on two CPU cores."""
    return SmallCNN(num_classes)


def build_model(name: str, num_classes: int, device: torch.device, *, side: int = 224) -> nn.Module:
    """Make a model by its name, in channels_last layout, on ``device``.

    ``side`` is that of the square images in pixels; only the vision transformers are made for one.

    Raises:
        ConfigError: the name is unknown, torchvision is needed and not there, there are fewer than two
            classes to tell apart, or the model cannot take images of this side.

    """
    if name not in MODEL_NAMES:
        raise ConfigError(f"model.name must be one of {', '.join(MODEL_NAMES)}, not {name!r}")
    if num_classes < _CLASSES_MIN:
        raise ConfigError(f"the data has {num_classes} class(es); a classifier needs at least {_CLASSES_MIN}")
    make: Callable[[int], nn.Module] | None = {"small_cnn": small_cnn}.get(name)
    model = make_vision_model(name, num_classes, side) if make is None else make(num_classes)
    return model.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]  # not in torch's stubs
