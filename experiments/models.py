"""The models that a spec may name: each takes uint8 images as they come and normalises them on the device.

torchvision is optional, and imported here only, when one of its models is made. Pretrained weights are left
to `experiments.weights`, training to `experiments.training`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from superdl.experiments.spec import MODEL_NAMES
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NormalisedNetwork", "SmallCNN", "build_model", "declare_operators", "fit_transformer"]

_CLASSES_MIN = 2
_MEAN = (0.485, 0.456, 0.406)  # of ImageNet, in [0, 1], as torchvision's weights were trained with
_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, slots=True)
class _Transformer:
    patch: int
    layers: int
    heads: int
    hidden: int
    mlp: int


_TRANSFORMERS = {
    "vit_b_32": _Transformer(patch=32, layers=12, heads=12, hidden=768, mlp=3072),
    "vit_mini": _Transformer(patch=8, layers=4, heads=4, hidden=128, mlp=256),  # for CPUs: 0.56 M parameters
}


def build_model(name: str, num_classes: int, device: torch.device, *, side: int = 224) -> nn.Module:
    """Make a model by its name, with fresh weights, in channels_last layout, on ``device``.

    ``side`` is that of the square images in pixels; only the vision transformers are made for one.

    Raises:
        ConfigError: the name is unknown, torchvision is needed and not there, there are fewer than two
            classes to tell apart, or the model cannot take images of this side.

    """
    if name not in MODEL_NAMES:
        raise ConfigError(f"model.name must be one of {', '.join(MODEL_NAMES)}, not {name!r}")
    if num_classes < _CLASSES_MIN:
        raise ConfigError(f"the data has {num_classes} class(es); a classifier needs at least {_CLASSES_MIN}")
    model: nn.Module
    if name == "small_cnn":
        model = SmallCNN(num_classes)
    elif name in _TRANSFORMERS:
        model = _transformer(name, num_classes, side)
    else:
        model = NormalisedNetwork(getattr(_torchvision_models(), name)(num_classes=num_classes), None)
    return model.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]  # not in torch's stubs


class SmallCNN(nn.Module):
    """Four 3x3 convolutions with batch norm, three of which halve the image, an average, a linear layer.

    Takes uint8 [N, 3, H, W] of any H and W from 8 on, contiguous or channels_last; gives float [N, classes].
    It learns the digits to about 0.98 in three epochs, in seconds on two CPU cores.
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


class NormalisedNetwork(nn.Module):
    """A network for normalised float images that takes uint8 ones [N, 3, H, W], in either layout."""

    scale: Tensor
    shift: Tensor

    def __init__(self, network: nn.Module, side: int | None) -> None:
        """Wrap ``network``, which takes images of any side, or of ``side`` pixels only."""
        super().__init__()
        self.network = network
        self._side = side
        mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (_MEAN, _STD))
        self.register_buffer("scale", 1 / (255 * std), persistent=False)
        self.register_buffer("shift", -mean / std, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of uint8 images.

        Raises:
            ConfigError: they are not of the side that the network was made for.

        """
        height, width = images.shape[-2:]
        if self._side is not None and (height, width) != (self._side, self._side):
            raise ConfigError(
                f"the model was made for images of {self._side} x {self._side} pixels (recipe.crop), and got "
                f"{height} x {width}; give recipe.crop the size that recipe.steps make"
            )
        logits: Tensor = self.network(torch.addcmul(self.shift, images.float(), self.scale))
        return logits


def _transformer(name: str, num_classes: int, side: int) -> nn.Module:
    """A vision transformer for square images of ``side`` pixels."""
    shape = _TRANSFORMERS[name]
    if side % shape.patch:
        raise ConfigError(
            f"model.name {name} cuts images into patches of {shape.patch} pixels: set recipe.crop to a "
            f"multiple of it, not {side}"
        )
    network = _torchvision_models().VisionTransformer(
        image_size=side,
        patch_size=shape.patch,
        num_layers=shape.layers,
        num_heads=shape.heads,
        hidden_dim=shape.hidden,
        mlp_dim=shape.mlp,
        num_classes=num_classes,
    )
    return NormalisedNetwork(network, side)


_POSITIONS = "encoder.pos_embedding"
_RENAMED = ((".mlp.linear_1.", ".mlp.0."), (".mlp.linear_2.", ".mlp.3."))


def fit_transformer(network: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a vision transformer with the present names of layers, and positions for its images.

    torchvision's published files have older names; positions are stretched to images of another side.
    """
    fitted = {}
    for name, value in weights.items():
        for older, newer in _RENAMED:
            name = name.replace(older, newer)  # noqa: PLW2901  # one after the other
        fitted[name] = value
    mine, theirs = network.state_dict().get(_POSITIONS), fitted.get(_POSITIONS)
    if mine is None or theirs is None or mine.shape == theirs.shape or mine.shape[-1] != theirs.shape[-1]:
        return fitted
    side, patch = int(network.image_size), int(network.patch_size)  # type: ignore[arg-type]  # torchvision's own
    stretched: dict[str, Tensor] = _torchvision_models().vision_transformer.interpolate_embeddings(
        side, patch, fitted
    )
    return stretched


def _torchvision_models() -> Any:
    declare_operators()
    try:
        from torchvision import models
    except (ImportError, RuntimeError) as error:  # RuntimeError: it was built for another torch
        raise ConfigError(
            f"this model is torchvision's, which cannot be imported ({error}): pip install 'superdl[vision]' "
            "(beside a torch without CUDA: pip install --no-deps torchvision), or set model.name=small_cnn"
        ) from error
    return models


_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_LIBRARIES: list[torch.library.Library] = []  # an operator lasts as long as the library that declared it


def declare_operators() -> None:
    """Let torchvision be imported beside a torch that was built without CUDA.

    A torchvision that was built for CUDA asks torch for its own operators while it is imported, and fails
    where its library did not load. Declared beforehand, they are found; nobody here calls them.
    """
    if _LIBRARIES or torch.version.cuda is not None:
        return
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]  # torch's own
    for schema in _OPERATORS:
        library.define(schema)  # type: ignore[no-untyped-call]  # the same
    _LIBRARIES.append(library)
