"""ResNets and vision transformers of torchvision, in a wrapper that normalises uint8 images on the device.

torchvision is optional, and imported here only, when a model is made. Weights are left to
`experiments.weights`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from superdl.experiments.torchvision_operators import declare_operators
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["VISION_MODELS", "NormalisedNetwork", "fit_transformer", "make_vision_model"]

_MEAN = (0.485, 0.456, 0.406)  # of ImageNet, in [0, 1], as torchvision's weights were trained with
_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, slots=True)
class _Transformer:
    patch: int
    layers: int
    heads: int
    hidden: int
    mlp: int


_RESNETS = ("resnet18", "resnet50")
_TRANSFORMERS = {
    "vit_b_32": _Transformer(patch=32, layers=12, heads=12, hidden=768, mlp=3072),
    "vit_mini": _Transformer(patch=8, layers=4, heads=4, hidden=128, mlp=256),  # for CPUs: 0.56 M parameters
}
VISION_MODELS = (*_RESNETS, *_TRANSFORMERS)


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


def make_vision_model(name: str, num_classes: int, side: int) -> nn.Module:
    """Make one of torchvision's models with fresh weights, for square images of ``side`` pixels.

    Raises:
        ConfigError: torchvision is not installed or does not load, or ``side`` is no multiple of a patch.

    """
    models = _torchvision_models()
    if name in _RESNETS:
        return NormalisedNetwork(getattr(models, name)(num_classes=num_classes), None)
    shape = _TRANSFORMERS[name]
    if side % shape.patch:
        raise ConfigError(
            f"model.name {name} cuts images into patches of {shape.patch} pixels: set recipe.crop to a "
            f"multiple of it, not {side}"
        )
    network = models.VisionTransformer(
        image_size=side,
        patch_size=shape.patch,
        num_layers=shape.layers,
        num_heads=shape.heads,
        hidden_dim=shape.hidden,
        mlp_dim=shape.mlp,
        num_classes=num_classes,
    )
    return NormalisedNetwork(network, side)


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


_RENAMED = ((".mlp.linear_1.", ".mlp.0."), (".mlp.linear_2.", ".mlp.3."))
_POSITIONS = "encoder.pos_embedding"


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
