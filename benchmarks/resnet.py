"""Residual networks in plain torch: the ResNet-18 and ResNet-50 of the paper, and a small one for one core.

torchvision's have the same layers; these need no second package. They take uint8 images as loaders give them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["RESNETS", "ResNet", "small_resnet"]


class ResNet(nn.Module):
    """A convolution and a pooling, four stages of blocks that halve the image, an average, a linear layer.

    Takes uint8 of shape (batch, 3, height, width), gives logits of shape (batch, classes).

    Args:
        block: makes a block of (channels in, channels of the stage, stride); gives it and its channels out.
        blocks: of each stage.
        width: channels of the first stage.
        classes: number of logits.
        stem_stride: of the first convolution.

    """

    def __init__(
        self,
        block: Callable[[int, int, int], tuple[nn.Module, int]],
        blocks: Sequence[int],
        *,
        width: int,
        classes: int,
        stem_stride: int = 2,
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, kernel_size=7, stride=stem_stride, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
        )
        channels, stages = width, []
        for stage, count in enumerate(blocks):
            for number in range(count):
                stride = 2 if stage and not number else 1
                made, channels = block(channels, width * 2**stage, stride)
                stages.append(made)
        self.stages = nn.Sequential(*stages)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        """The logits. Grey levels become about [-2, 2], in the type of the weights unless autocast rules."""
        centred = images.to(self.classifier.weight.dtype).sub_(127.5).div_(64.0)
        logits: Tensor = self.classifier(self.stages(self.stem(centred)).mean(dim=(2, 3)))
        return logits


class _Residual(nn.Module):
    def __init__(self, body: nn.Sequential, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.body = body
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = _convolution(channels_in, channels_out, 1, stride)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.relu(self.body(inputs) + self.shortcut(inputs))


def _convolution(channels_in: int, channels_out: int, size: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, size, stride=stride, padding=size // 2, bias=False),
        nn.BatchNorm2d(channels_out),
    )


def _basic(channels_in: int, channels: int, stride: int) -> tuple[nn.Module, int]:
    body = nn.Sequential(
        _convolution(channels_in, channels, 3, stride),
        nn.ReLU(inplace=True),
        _convolution(channels, channels, 3, 1),
    )
    return _Residual(body, channels_in, channels, stride), channels


def _bottleneck(channels_in: int, channels: int, stride: int) -> tuple[nn.Module, int]:
    body = nn.Sequential(
        _convolution(channels_in, channels, 1, 1),
        nn.ReLU(inplace=True),
        _convolution(channels, channels, 3, stride),
        nn.ReLU(inplace=True),
        _convolution(channels, 4 * channels, 1, 1),
    )
    return _Residual(body, channels_in, 4 * channels, stride), 4 * channels


def small_resnet(classes: int, width: int) -> ResNet:
    """One block in each stage on images made small at once: a millisecond or so per image on one core."""
    return ResNet(_basic, (1, 1, 1, 1), width=width, classes=classes, stem_stride=4)


RESNETS: Mapping[str, Callable[[int], ResNet]] = {
    "resnet18": lambda classes: ResNet(_basic, (2, 2, 2, 2), width=64, classes=classes),
    "resnet50": lambda classes: ResNet(_bottleneck, (3, 4, 6, 3), width=64, classes=classes),
}
"""By name; each is called with the number of classes."""
