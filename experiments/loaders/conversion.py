"""Brings a source's images into another loader's format, once: files as they are, packed into shards.

What it took is kept beside the shards and reported, since users of such a loader pay it. Of several
processes that want the same one writes and the others wait. How a format is written is its loader's.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from superdl.experiments.data.whole_directory import check_room, is_vacant, manifest_of, written_whole
from superdl.super_wire.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from superdl.experiments.loaders.interface import LoaderRequest
    from superdl.experiments.loaders.samples import Samples

__all__ = ["Converted", "Format", "convert_once", "need_package"]

_COST = "conversion.json"
_ORDER = "order.npy"
_IMAGES = "images"
_SHUFFLE_SEED = 0  # of the order in which shards are written, whatever a run's own shuffle is
_FILES = 4096  # more than the shards of any set here
_MEGABYTE = 1e6


@dataclass(frozen=True, slots=True)
class Format:
    """One way of packing files.

    Args:
        name: of the loader.
        version: raised whenever other bytes are written than before.
        overhead_bytes: what a sample takes beside its file, about.
        write: writes samples into an empty directory; takes their places in the order wanted and the bytes
            of all files.

    """

    name: str
    version: int
    overhead_bytes: int
    write: Callable[[Samples, Sequence[int], int, Path], None]


@dataclass(frozen=True, slots=True)
class Converted:
    """Images in another format.

    ``order`` has, for each place in the shards, the sample's place in key order. ``seconds`` is what writing
    took, ``size_bytes`` what it takes on the disk, ``reused`` whether it was there already.
    """

    directory: Path
    order: Sequence[int]
    seconds: float
    size_bytes: int
    reused: bool

    def settings(self) -> dict[str, object]:
        """What a report says of it."""
        return {
            "conversion_s": round(self.seconds, 3),
            "converted_bytes": self.size_bytes,
            "conversion_reused": self.reused,
        }


@dataclass(frozen=True, slots=True)
class _Cost:
    seconds: float
    size_bytes: int


def convert_once(samples: Samples, form: Format, request: LoaderRequest) -> Converted:
    """The images in ``form``, written now unless they are there.

    For training they are written in shuffled order, as each of the packages advises, since it then reads them
    in sequence; for validation in key order. Samples that changed since, by size, time or ETag, make another
    directory.

    Raises:
        ConfigError: the place cannot be written, or has no room.
        SourceError: a file cannot be read, or what is there is damaged.

    """
    manifest = {
        "format": form.name,
        "version": form.version,
        "order": "shuffled" if request.training else "keys",
        "samples": len(samples),
        "fingerprint": samples.fingerprint.hex(),
    }
    digest = hashlib.blake2b(json.dumps(manifest).encode(), digest_size=8).hexdigest()
    directory = request.converted.expanduser().absolute() / f"{form.name}-{digest}"
    with _alone(directory):
        reused = not is_vacant(directory)
        if not reused:
            _write(samples, form, directory, manifest, request)
        elif manifest_of(directory) != manifest:
            raise SourceError(
                f"{directory} is not what a conversion for loader.kind {form.name} left: delete it"
            )
    cost = _Cost(**json.loads((directory / _COST).read_text(encoding="utf-8")))
    order = np.load(directory / _ORDER, allow_pickle=False).tolist()
    return Converted(directory / _IMAGES, order, cost.seconds, cost.size_bytes, reused)


def _write(
    samples: Samples, form: Format, directory: Path, manifest: dict[str, object], request: LoaderRequest
) -> None:
    size_bytes = samples.size_bytes()
    check_room(
        directory,
        size_bytes=size_bytes + form.overhead_bytes * len(samples),
        files=_FILES,
        what=f"the conversion for loader.kind {form.name}",
        less="set another loader.kind",
    )
    request.tell(
        f"writing {len(samples):,} images ({size_bytes / _MEGABYTE:,.0f} MB) once for loader.kind "
        f"{form.name} into {directory}"
    )
    order = np.arange(len(samples))
    if request.training:
        order = np.random.default_rng(_SHUFFLE_SEED).permutation(order)
    with written_whole(directory, manifest) as staging:
        start_s = time.perf_counter()
        (staging / _IMAGES).mkdir()
        form.write(samples, order.tolist(), size_bytes, staging / _IMAGES)
        np.save(staging / _ORDER, order, allow_pickle=False)
        taken = sum(path.stat().st_size for path in staging.rglob("*") if path.is_file())
        cost = _Cost(time.perf_counter() - start_s, taken)
        (staging / _COST).write_text(json.dumps(asdict(cost)) + "\n", encoding="utf-8")


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Hold a lock on one conversion; others that want it wait until this process is done, or gone."""
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        lock = (directory.parent / f".{directory.name}.lock").open("wb")
    except OSError as error:
        raise ConfigError(
            f"cannot write to {directory.parent}: {error.strerror or error}; start the run in a directory "
            "that you may write"
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def need_package(module: str, kind: str, note: str = "") -> None:
    """See that a package can be imported.

    Args:
        module: what is imported.
        kind: the loader that needs it, and the name of the extra that has it.
        note: what else its user should know.

    Raises:
        ConfigError: it is not installed.

    """
    if find_spec(module) is None:
        raise ConfigError(
            f"loader.kind {kind} needs the package {module}, which is not installed: "
            f"pip install 'superdl[{kind}]'{f' ({note})' if note else ''}, or set another loader.kind"
        )
