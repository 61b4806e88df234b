"""Pack a source's unchanged files into shards of another loader's format, once.

The time it took is stored beside the shards and reported, since users of such a loader pay it.
"""

from __future__ import annotations

import hashlib
import json
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from superdl.experiments.data.whole_directory import check_room, written_once
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from superdl.experiments.loaders.interface import LoaderRequest
    from superdl.experiments.loaders.samples import Samples

__all__ = ["Converted", "Write", "convert_once", "need_package"]

_COST = "conversion.json"
_IMAGES = "images"
_SHUFFLE_SEED = 0  # of the order of samples in shards, independent of a run's own shuffle
_VERSION = 1  # raised whenever a loader's samples are written differently
_MEGABYTE = 1e6


Write: TypeAlias = "Callable[[Samples, Sequence[int], int, Path], None]"
"""Writes samples into an empty directory; arguments are their indices in order, and their total bytes."""


class Converted(NamedTuple):
    """Images in another format: their directory, and the seconds of writing them."""

    directory: Path
    seconds: float


def need_package(module: str, kind: str, note: str = "") -> None:
    """Check that loader ``kind``'s package is installed, by the extra of that name.

    Raises:
        ConfigError: it is not installed; ``note`` is added to the message.
    """
    if find_spec(module) is None:
        raise ConfigError(
            f"loader.kind {kind} needs the package {module}, which is not installed: "
            f"pip install 'superdl[{kind}]'{f' ({note})' if note else ''}, or set another loader.kind"
        )


def convert_once(samples: Samples, kind: str, write: Write, request: LoaderRequest) -> Converted:
    """Return the images in the format of loader ``kind``, written if necessary.

    Training images are written in shuffled order, as all these packages recommend, since they then read
    sequentially; validation images in key order. Samples with another size, time or ETag go to another
    directory.

    Raises:
        ConfigError: the place cannot be written, or has no room.
        SourceError: a file cannot be read, or the existing conversion is damaged.
    """
    manifest = {
        "format": kind,
        "version": _VERSION,
        "order": "shuffled" if request.training else "keys",
        "samples": len(samples),
        "fingerprint": samples.fingerprint.hex(),
    }
    digest = hashlib.blake2b(json.dumps(manifest).encode(), digest_size=8).hexdigest()
    directory = request.converted.expanduser().absolute() / f"{kind}-{digest}"
    what = f"the conversion for loader.kind {kind}"

    def fill(staging: Path) -> None:
        size_bytes = samples.size_bytes()
        check_room(directory, size_bytes, what)
        request.tell(
            f"writing {len(samples):,} images ({size_bytes / _MEGABYTE:,.0f} MB) once for loader.kind "
            f"{kind} into {directory}"
        )
        order = np.arange(len(samples))
        if request.training:
            order = np.random.default_rng(_SHUFFLE_SEED).permutation(order)
        start_s = time.perf_counter()
        (staging / _IMAGES).mkdir()
        write(samples, order.tolist(), size_bytes, staging / _IMAGES)
        cost = {"seconds": time.perf_counter() - start_s}
        (staging / _COST).write_text(json.dumps(cost) + "\n", encoding="utf-8")

    written_once(directory, manifest, what, fill)
    cost = json.loads((directory / _COST).read_text(encoding="utf-8"))
    return Converted(directory / _IMAGES, cost["seconds"])
