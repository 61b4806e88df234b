"""``superdl bench augment``: what augmentation after the cache costs, operation by operation.

Beside it torchvision's transforms on the same pixels, image by image, as tensors and as PIL images, where
torchvision is installed.
"""

from __future__ import annotations

import functools
import importlib
import time
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks import positive
from benchmarks.results import BenchmarkReport, Column, Started
from superdl.experiments.models import declare_operators
from superdl.super_dataset import Augment, BatchInfo
from superdl.super_wire.ids import digest128

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

__all__ = ["add_arguments", "measure", "torchvision_transforms"]

SUPER = "SUPER"
TENSORS, PIL = "torchvision, tensors", "torchvision, PIL"

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_NORMAL = {"mean": _MEAN, "std": _STD}
_UINT8 = {"dtype": torch.uint8}
_JITTER = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}

_OPERATIONS: Mapping[str, dict[str, Any]] = {
    "crop": {"flip": 0.0, **_UINT8},
    "crop, flip": _UINT8,
    "crop, flip, normalise": _NORMAL,
    "crop, flip, normalise, bfloat16": {**_NORMAL, "dtype": torch.bfloat16},
    **{f"crop, {name}": {"flip": 0.0, name: value, **_UINT8} for name, value in _JITTER.items()},
    "crop, flip, jitter, normalise": {**_JITTER, **_NORMAL},
}

_METHOD = (
    (
        "CPU of this process for each image, one torch thread, medians over the rounds in which all take "
        "turns, one more round before them uncounted. Augment takes a batch as the dataset delivers it, "
        "uint8. torchvision is called for each image as its documentation shows, with the conversion to "
        "float32 where images are normalised; decoding, collating and the way between processes are "
        "nobody's here."
    ),
)

_COLUMNS = (
    Column("operations", "operations"),
    Column("way", "way"),
    Column("cpu_ms_per_image", "CPU ms\n/image", ".3f"),
    Column("times_super", "times\nSUPER", ".1f"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument("--source", type=positive, default=256, help="side of cached images (256)")
    parser.add_argument("--size", type=positive, default=224, help="side of the crops (224)")
    parser.add_argument("--batch-size", type=positive, default=64, help="(64)")
    parser.add_argument("--rounds", type=positive, default=5, help="measured after the first (5)")


def measure(arguments: argparse.Namespace, say: Callable[[str], None]) -> BenchmarkReport:
    """Augment one batch in all ways; ``say`` gets a line for each round."""
    started = Started(arguments)
    if torchvision_transforms() is None:
        say("torchvision is not installed (pip install --no-deps torchvision): it is left out")
    images = _images(arguments.batch_size, arguments.source)
    ways = {
        (name, way): call
        for name, options in _OPERATIONS.items()
        for way, call in _ways(options, images, arguments.size).items()
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rounds = []
        for number in range(arguments.rounds + 1):
            say(f"round {number} of {arguments.rounds}")
            rounds.append({key: _cpu_ms(call) / len(images) for key, call in ways.items()})
    finally:
        torch.set_num_threads(threads)
    return started.report(
        method=_METHOD,
        columns=_COLUMNS,
        rows=_rows(rounds[1:]),
        rounds=(
            {"round": number, "operations": name, "way": way, "cpu_ms_per_image": ms}
            for number, one in enumerate(rounds)
            for (name, way), ms in one.items()
        ),
    )


def _images(count: int, side: int) -> torch.Tensor:
    """Waves and noise, uint8 of shape (count, 3, side, side), channels_last."""
    generator = np.random.default_rng(0)
    waves = np.sin(np.arange(side) / 20)[:, None, None] * 90 + generator.normal(
        128, 20, (count, side, side, 3)
    )
    return torch.from_numpy(waves.clip(0, 255).astype(np.uint8)).movedim(-1, 1)


def _ways(options: dict[str, Any], images: torch.Tensor, size: int) -> dict[str, Callable[[], object]]:
    augment, info = Augment(size, **options), _info(len(images))
    ways: dict[str, Callable[[], object]] = {SUPER: lambda: augment.images(images, info)}
    transforms = torchvision_transforms()
    if transforms is not None and options.get("dtype") != torch.bfloat16:  # it gives float32
        tensors = [image.contiguous() for image in images]
        pictures = [transforms.functional.to_pil_image(image) for image in tensors]
        as_tensors, as_pictures = (_chain(transforms, options, size, pil=pil) for pil in (False, True))
        ways[TENSORS] = lambda: [as_tensors(image) for image in tensors]
        ways[PIL] = lambda: [as_pictures(image) for image in pictures]
    return ways


def _chain(transforms: Any, options: dict[str, Any], size: int, *, pil: bool) -> Any:
    steps = [transforms.RandomResizedCrop(size, antialias=True)]
    if options.get("flip") != 0:
        steps.append(transforms.RandomHorizontalFlip())
    jitter = {name: value for name, value in options.items() if name in _JITTER}
    if jitter:
        steps.append(transforms.ColorJitter(**jitter))
    if "mean" in options:
        steps += [transforms.ToTensor() if pil else transforms.ConvertImageDtype(torch.float32)]
        steps += [transforms.Normalize(_MEAN, _STD)]
    return transforms.Compose(steps)


def _info(count: int) -> BatchInfo:
    ids = b"".join(digest128(str(number).encode()) for number in range(count))
    return BatchInfo(
        job="bench",
        batch_id=b"",
        epoch=0,
        position=0,
        rank=0,
        sample_ids=ids,
        keys=(),
        padding=None,
        fetch_s=0.0,
        decode_s=0.0,
        read_s=0.0,
        check_s=0.0,
        wait_s=0.0,
        size_bytes=0,
        hits=count,
        misses=0,
    )


def _cpu_ms(call: Callable[[], object]) -> float:
    began_s = time.process_time()
    call()
    return 1e3 * (time.process_time() - began_s)


def _rows(rounds: list[dict[tuple[str, str], float]]) -> tuple[dict[str, Any], ...]:
    typical = {key: median(one[key] for one in rounds) for key in rounds[0]}
    return tuple(
        {
            "operations": name,
            "way": way,
            "cpu_ms_per_image": ms,
            "times_super": ms / typical[name, SUPER],
        }
        for (name, way), ms in typical.items()
    )


@functools.cache
def torchvision_transforms() -> Any:
    """``torchvision.transforms``, or ``None`` if torchvision is not installed.

    It is no dependency (``pip install --no-deps torchvision``). A CUDA build of it is imported also beside a
    CPU build of torch.
    """
    declare_operators()
    try:
        return importlib.import_module("torchvision.transforms")
    except ModuleNotFoundError as error:
        if error.name != "torchvision":
            raise
        return None
