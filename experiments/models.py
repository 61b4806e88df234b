"""Build the models that a spec can select, and load pretrained weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

# Prefix of timm's model names.
TIMM = "timm:"
_CLASSES_MIN = 2
_MEAN = (0.485, 0.456, 0.406)  # of ImageNet, in [0, 1], as for torchvision's weights
_STD = (0.229, 0.224, 0.225)


# Arguments as in torchvision; `vit_mini`, for CPUs, has 0.56 M parameters.
_TRANSFORMERS = {
    "vit_b_32": {"patch_size": 32, "num_layers": 12, "num_heads": 12, "hidden_dim": 768, "mlp_dim": 3072},
    "vit_mini": {"patch_size": 8, "num_layers": 4, "num_heads": 4, "hidden_dim": 128, "mlp_dim": 256},
}


def build_model(name: str, num_classes: int, device: torch.device, *, side: int = 224) -> nn.Module:
    """Create a model for uint8 images on ``device``, with fresh weights in channels_last layout.

    Only vision transformers depend on ``side``, the image size in pixels. ``timm:NAME`` selects a timm
    model, which has its own mean and standard deviation.

    Raises:
        ConfigError: torchvision or timm is missing, timm has no such model, there are fewer than two
            classes, or the model does not accept images of this size.
    """
    if num_classes < _CLASSES_MIN:
        raise ConfigError(
            f"the data has {num_classes} class(es), but a classifier needs at least {_CLASSES_MIN}"
        )
    model: nn.Module
    if name == "small_cnn":
        model = SmallCNN(num_classes)
    elif name.startswith(TIMM):
        model = _timm_model(name.removeprefix(TIMM), num_classes, side)
    elif name in _TRANSFORMERS:
        model = _transformer(name, num_classes, side)
    elif name == "resnet10":  # a ResNet-18 with half its blocks, for CPUs
        resnet = _torchvision_models().resnet
        model = NormalisedNetwork(resnet.ResNet(resnet.BasicBlock, [1] * 4, num_classes=num_classes), None)
    else:
        model = NormalisedNetwork(getattr(_torchvision_models(), name)(num_classes=num_classes), None)
    return model.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]  # missing from torch's stubs


class SmallCNN(nn.Module):
    """A small CNN that maps uint8 [N, 3, H, W], with H and W at least 8, to float [N, classes]."""

    def __init__(self, num_classes: int, width: int = 24) -> None:
        super().__init__()
        # Reaches an accuracy of about 0.98 on the digits within seconds, on two CPU cores.
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
    """Normalise uint8 [N, 3, H, W], in either memory layout, for a network that takes floats."""

    scale: Tensor
    shift: Tensor

    def __init__(
        self,
        network: nn.Module,
        side: int | None,
        mean: Sequence[float] = _MEAN,
        std: Sequence[float] = _STD,
    ) -> None:
        """Wrap ``network``. If ``side`` is set, only square images of that size are accepted."""
        super().__init__()
        self.network = network
        self._side = side
        means, stds = (torch.tensor(values).view(1, 3, 1, 1) for values in (mean, std))
        # Not persistent: checkpoints contain only the network's own values.
        self.register_buffer("scale", 1 / (255 * stds), persistent=False)
        self.register_buffer("shift", -means / stds, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of uint8 images."""
        height, width = images.shape[-2:]
        if self._side is not None and (height, width) != (self._side, self._side):
            raise ConfigError(
                f"the model expects images of {self._side} x {self._side} pixels (recipe.crop), not {height} "
                f"x {width}. Set recipe.crop to the size that recipe.steps produce."
            )
        logits: Tensor = self.network(torch.addcmul(self.shift, images.float(), self.scale))
        return logits


def _transformer(name: str, num_classes: int, side: int) -> nn.Module:
    shape = _TRANSFORMERS[name]
    # torchvision's own assertion does not name the key.
    if side % shape["patch_size"]:
        raise ConfigError(
            f"model.name {name} cuts images into patches of {shape['patch_size']} pixels. Set recipe.crop to "
            f"a multiple of that, not {side}."
        )
    transformer = _torchvision_models().VisionTransformer
    return NormalisedNetwork(transformer(image_size=side, num_classes=num_classes, **shape), side)


def _timm_model(name: str, num_classes: int, side: int) -> nn.Module:
    declare_operators()
    try:
        import timm
    except (ImportError, RuntimeError) as error:  # RuntimeError: from torchvision, as below
        raise ConfigError(
            f"cannot import timm for model.name {TIMM}{name}: {error}. Run pip install 'superdl[timm]' or, "
            "if your torch is CPU-only, pip install --no-deps torchvision timm"
        ) from error
    if not timm.is_model(name):
        close = ", ".join(timm.list_models(f"*{name.split('.', maxsplit=1)[0][:12]}*")[:5])
        raise ConfigError(f"model.name: timm {timm.__version__} has no model {name}. Similar names: {close}")
    known = timm.get_pretrained_cfg(name)
    fixed = known is not None and known.fixed_input_size
    try:
        # Weights come from a file, never from the network.
        network = timm.create_model(
            name, pretrained=False, num_classes=num_classes, **({"img_size": side} if fixed else {})
        )
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"model.name {TIMM}{name} does not accept images of {side} pixels (recipe.crop): {error}"
        ) from error
    mean, std = (_MEAN, _STD) if known is None else (known.mean, known.std)
    return NormalisedNetwork(network, side if fixed else None, mean, std)


def _torchvision_models() -> Any:
    declare_operators()
    try:
        from torchvision import models
    except (ImportError, RuntimeError) as error:  # RuntimeError: it was built for another torch
        raise ConfigError(
            f"cannot import torchvision for this model: {error}. Run pip install 'superdl[vision]' or, with "
            "a torch without CUDA, pip install --no-deps torchvision. Or set model.name=small_cnn."
        ) from error
    return models


_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_LIBRARIES: list[torch.library.Library] = []  # operators disappear with their library


def declare_operators() -> None:
    """Make torchvision importable with a build of torch without CUDA."""
    if _LIBRARIES or torch.version.cuda is not None:
        return
    # A torchvision built for CUDA looks up these operators on import, even if its library, which defines
    # them, cannot be loaded. SUPER never calls them.
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for schema in _OPERATORS:
        library.define(schema)  # type: ignore[no-untyped-call]
    _LIBRARIES.append(library)


# ----------------------------------------------------------------------------------- pretrained weights

_MAX_REASON = 500  # characters
_NESTED = ("model", "state_dict")


def load_weights(model: nn.Module, place: str, source: str | None = None) -> str:
    """Load weights from the file ``place``, and return a description of them.

    A classifier with a different number of classes is skipped. If the file is missing, the error says to
    download it from ``source``.

    Raises:
        ConfigError: the file is missing or damaged, contains code, or does not match the model.
    """
    network = model.network if isinstance(model, NormalisedNetwork) else model
    weights = _read(Path(place).expanduser(), source)
    mine = network.state_dict()
    linear = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)]
    known = getattr(network, "pretrained_cfg", {}).get("classifier")  # timm's name for it
    # By convention, the classifier is the last linear layer.
    head = known if isinstance(known, str) else linear[-1]
    skipped = [
        name
        for name in mine
        if name.startswith(f"{head}.") and (name not in weights or weights[name].shape != mine[name].shape)
    ]
    if skipped:
        weights = {name: value for name, value in weights.items() if not name.startswith(f"{head}.")}
        weights |= {name: mine[name] for name in skipped}
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:  # names the parameters
        reason = " ".join(str(error).split())[:_MAX_REASON]
        raise ConfigError(f"model.weights: {place} does not match this model: {reason}") from error
    if skipped:
        return f"weights of {place}, except for the classifier of other classes ({', '.join(skipped)})"
    return f"weights of {place}"


def _read(path: Path, source: str | None) -> dict[str, Tensor]:
    if not path.is_file():
        hint = "Set" if source is None else f"Download it from {source}, or set"
        raise ConfigError(
            f"model.weights: there is no file {path}. {hint} model.weights=null to train from scratch."
        )
    try:
        content: Any = _loaded(path)
    except ImportError as error:
        raise ConfigError(
            f"model.weights: cannot import safetensors for {path}: {error}. Run pip install 'superdl[timm]'."
        ) from error
    except Exception as error:  # a damaged file can raise any error
        raise ConfigError(
            f"model.weights: {path} is neither a .safetensors file nor a weights file that "
            f"torch.load can read with weights_only=True ({type(error).__name__}); save the weights with "
            "torch.save(model.state_dict(), path)"
        ) from error
    for key in _NESTED:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
            break
    if not isinstance(content, dict) or not content:
        raise ConfigError(f"model.weights: {path} contains {type(content).__name__} instead of a state dict")
    # Prefixes of DistributedDataParallel and NormalisedNetwork.
    names = {name: str(name).removeprefix("module.").removeprefix("network.") for name in content}
    return {names[name]: value for name, value in content.items() if isinstance(value, Tensor)}


def _loaded(path: Path) -> Any:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    # weights_only: nothing in a file is executed.
    return torch.load(path, map_location="cpu", weights_only=True)  # noqa: TID251  # weights_only
