"""Writes scikit-learn's handwritten digits as JPEG files in class folders: a small, real image set.

The 1,797 scans of 8x8 pixels are enlarged to 64x64 RGB and split into train and validation, class by class,
by a seeded hash, so that the split is the same on every machine and under every library version. The
directory appears whole or not at all. Reading the files is left to the loaders.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superdl.super_wire.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["DIGITS_FORMAT", "DigitsFormat", "make_digits"]

_MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class DigitsFormat:
    """What decides the content of the set; stored in its manifest and compared when the set is reused."""

    name: str = "digits"
    format: int = 1
    side_pixels: int = 64
    jpeg_quality: int = 95
    split_seed: int = 0
    val_percent: int = 20


DIGITS_FORMAT = DigitsFormat()


def make_digits(directory: str | Path) -> Path:
    """Write the digits below ``directory`` as ``train/0..9/NNNN.jpg`` and ``val/0..9/NNNN.jpg``.

    A directory that already holds the finished set is checked and left as it is. The set is written beside
    the target and renamed, so an interrupted run leaves nothing half done.

    Returns the directory's absolute path.

    Raises:
        SourceError: the directory holds other files, or a set that is damaged.
        ConfigError: the path cannot be a directory, cannot be written, or scikit-learn is not installed.

    """
    target = Path(directory).expanduser().absolute()
    if _is_finished(target):
        return target
    staging = _staging_beside(target)
    try:
        counts = _write_images(staging)
        manifest = {**asdict(DIGITS_FORMAT), "counts": counts}
        (staging / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        staging.chmod(0o755)  # mkdtemp makes it private; the functions that read it may be another user
        _move_into_place(staging, target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target


def _is_finished(target: Path) -> bool:
    """Tell whether the set is there; raise if something else is."""
    if not target.exists():
        return False
    if not target.is_dir():
        raise ConfigError(f"cannot write the digits to {target}: it is a file; name a directory")
    if not any(target.iterdir()):
        return False
    manifest = _read_manifest(target)
    found = {split: sum(1 for _ in (target / split).glob("*/*.jpg")) for split in manifest["counts"]}
    if found != manifest["counts"]:
        raise SourceError(
            f"the digits in {target} are damaged: there are {found} images, not {manifest['counts']}; "
            "delete the directory and run again",
        )
    return True


def _read_manifest(target: Path) -> dict[str, Any]:
    path = target / _MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SourceError(
            f"cannot write the digits to {target}: it holds other files; name a new or an empty directory",
        ) from None
    except ValueError as error:
        raise SourceError(f"{path} is not JSON ({error}); delete {target} and run again") from error
    expected = asdict(DIGITS_FORMAT)
    if (
        not isinstance(manifest, dict)
        or {key: manifest.get(key) for key in expected} != expected
        or not isinstance(manifest.get("counts"), dict)
    ):
        raise SourceError(
            f"{path} describes another set than this version writes ({expected}); "
            "delete the directory or name another one",
        )
    return manifest


def _staging_beside(target: Path) -> Path:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise ConfigError(
            f"cannot write the digits to {target}: {error.strerror}: {error.filename}; "
            "name a directory that you may write",
        ) from error


def _move_into_place(staging: Path, target: Path) -> None:
    try:
        staging.replace(target)  # also onto an empty directory
    except OSError:
        if not _is_finished(target):  # another process may have written the set meanwhile
            raise


def _write_images(root: Path) -> dict[str, int]:
    """Write every image below ``root`` and return how many each split has."""
    try:
        from sklearn.datasets import load_digits  # heavy: imported only when the set is written
    except ImportError as error:
        raise ConfigError(
            "the digits come from scikit-learn, which is not installed: pip install 'superdl[train]'",
        ) from error
    import numpy as np
    from PIL import Image

    digits = load_digits()
    grey = np.rint(digits.images * (255.0 / 16.0)).astype(np.uint8)  # [1797, 8, 8], 16 is white
    labels = [int(label) for label in digits.target]
    val_indices = _validation_indices(labels)
    counts = {"train": 0, "val": 0}
    side = DIGITS_FORMAT.side_pixels
    for index, label in enumerate(labels):
        split = "val" if index in val_indices else "train"
        folder = root / split / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        enlarged = Image.fromarray(grey[index]).resize((side, side), Image.Resampling.BICUBIC)
        enlarged.convert("RGB").save(folder / f"{index:04d}.jpg", quality=DIGITS_FORMAT.jpeg_quality)
        counts[split] += 1
    return counts


def _validation_indices(labels: Iterable[int]) -> set[int]:
    """Return the indices held out: of each class the same share, chosen by a seeded hash of the index."""
    by_class: dict[int, list[int]] = defaultdict(list)
    for index, label in enumerate(labels):
        by_class[label].append(index)
    held_out: set[int] = set()
    for indices in by_class.values():
        share = round(len(indices) * DIGITS_FORMAT.val_percent / 100)
        held_out.update(sorted(indices, key=_split_key)[:share])
    return held_out


def _split_key(index: int) -> bytes:
    return hashlib.blake2b(f"{DIGITS_FORMAT.split_seed}:{index}".encode(), digest_size=8).digest()
