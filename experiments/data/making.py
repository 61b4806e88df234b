"""Write an image set once and atomically: scikit-learn's digits or drawn pictures."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superdl.experiments.data.whole_directory import MANIFEST, check_room, manifest_of, written_once
from superdl.experiments.image_sets import SPLITS, MadeSet
from superdl.super_wire.errors import ConfigError, SourceError
from superdl.super_wire.host import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# 1,797 scans of 8x8 pixels, enlarged to RGB. The manifest keeps these facts, to compare on reuse.
DIGITS_FORMAT: Mapping[str, Any] = {
    "name": "digits",
    "format": 1,
    "side_pixels": 64,
    "jpeg_quality": 95,
    "split_seed": 0,
    "val_percent": 20,
    "counts": {"train": 1438, "val": 359},
}

_TOLD_TIMES = 10
_AT_ONCE = 50  # pictures that a thread draws between progress reports
_MEGABYTE = 1e6


# -------------------------------------------------------------------------------------------- digits


def make_digits(directory: str | Path) -> Path:
    """Write the digits as ``train/0..9/NNNN.jpg`` and ``val/0..9/NNNN.jpg``; return their path.

    A directory that already holds the complete set is checked and left as it is.

    Raises:
        SourceError: the directory holds other files, or a set that is damaged.
        ConfigError: the path cannot be written, or scikit-learn is not installed.
    """
    target = Path(directory).expanduser().absolute()
    written_once(target, DIGITS_FORMAT, "the digits", _write_digits)
    return _checked(target, DIGITS_FORMAT["counts"], "the digits")


def _write_digits(root: Path) -> None:
    try:
        from sklearn.datasets import load_digits  # slow to import
    except ImportError as error:
        raise ConfigError(
            "the digits come from scikit-learn, which is not installed: pip install 'superdl[train]'",
        ) from error
    import numpy as np
    from PIL import Image

    digits = load_digits()
    grey = np.rint(digits.images * (255.0 / 16.0)).astype(np.uint8)  # [1797, 8, 8], 16 is white
    labels = [int(label) for label in digits.target]
    held_out = _validation_indices(labels)
    side = DIGITS_FORMAT["side_pixels"]
    for index, label in enumerate(labels):
        folder = root / ("val" if index in held_out else "train") / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        enlarged = Image.fromarray(grey[index]).resize((side, side), Image.Resampling.BICUBIC)
        enlarged.convert("RGB").save(folder / f"{index:04d}.jpg", quality=DIGITS_FORMAT["jpeg_quality"])


def _validation_indices(labels: list[int]) -> set[int]:
    """Return the held-out indices, an equal share of each class."""

    def split_key(index: int) -> bytes:
        # A seeded hash gives the same split everywhere.
        return hashlib.blake2b(f"{DIGITS_FORMAT['split_seed']}:{index}".encode(), digest_size=8).digest()

    held_out: set[int] = set()
    for label in set(labels):
        indices = [index for index, its_label in enumerate(labels) if its_label == label]
        share = round(len(indices) * DIGITS_FORMAT["val_percent"] / 100)
        held_out.update(sorted(indices, key=split_key)[:share])
    return held_out


def _checked(target: Path, counts: Mapping[str, int], what: str) -> Path:
    present = {split: sum(1 for _ in (target / split).glob("*/*.*")) for split in SPLITS}
    if present != counts:
        raise SourceError(
            f"{what} in {target} is damaged: there are {present} images, not {counts}; delete the directory "
            "and make it again"
        )
    return target


# ------------------------------------------------------------------------------------ drawn pictures


def make_set(
    made: MadeSet,
    directory: str | Path,
    *,
    samples: int | None = None,
    seed: int = 0,
    threads: int | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Path:
    """Write a set below ``directory`` as ``train/<class>/*`` and ``val/<class>/*``; return its path.

    A directory that already holds exactly this set is checked and left as it is. Equal ``samples``,
    the number of training images (None: all), and ``seed`` give equal files, whatever the
    ``threads`` (None: one per core). ``tell`` receives lines for people.

    Raises:
        ConfigError: too few samples, no room, or a place that cannot be written.
        SourceError: the directory has other content, or a set that is damaged.
    """
    from superdl.experiments.data.pictures import PICTURE_FORMAT, colour_mode  # needs numpy

    target = Path(directory).expanduser().absolute()
    counts = made.counts(samples)
    modes = Counter(colour_mode(made, index) for count in counts.values() for index in range(count))
    manifest = {
        "name": made.name,
        "format": PICTURE_FORMAT,
        "seed": seed,
        "counts": counts,
        "colour_modes": dict(sorted(modes.items())),
        "made": asdict(made),
    }

    def fill(staging: Path) -> None:
        total = sum(counts.values())
        size = made.disk_bytes(total)
        check_room(target, size, f"{made.name} of {total:,} images")
        tell(
            f"drawing {made.name}: {counts['train']:,} training and {counts['val']:,} validation images, "
            f"about {size / _MEGABYTE:,.0f} MB, into {target}"
        )
        # Threads suffice, since numpy and Pillow release the GIL.
        _draw(made, seed, counts, staging, threads or usable_cores(), tell)

    written_once(target, manifest, made.name, fill)
    return _checked(target, counts, made.name)


def _draw(
    made: MadeSet,
    seed: int,
    counts: Mapping[str, int],
    root: Path,
    threads: int,
    tell: Callable[[str], None],
) -> None:
    from superdl.experiments.data.pictures import label_of, picture_file

    def draw_some(split: str, start: int, digits: int) -> int:
        indices = range(start, min(start + _AT_ONCE, counts[split]))
        for index in indices:
            folder = f"{root}/{split}/{made.class_name(label_of(made, index))}"
            content = picture_file(made, seed, split, index)
            with open(f"{folder}/{index:0{digits}d}.{made.extension}", "wb") as file:  # noqa: PTH123  # a Path for each costs
                file.write(content)
        return len(indices)

    for split in counts:
        for label in range(made.classes):
            (root / split / made.class_name(label)).mkdir(parents=True)
    total, done, reported, start_s = sum(counts.values()), 0, 0, time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        futures = [
            pool.submit(draw_some, split, start, max(5, len(str(count - 1))))
            for split, count in counts.items()
            for start in range(0, count, _AT_ONCE)
        ]
        try:
            for future in as_completed(futures):
                done += future.result()
                if done * _TOLD_TIMES // total > reported:
                    reported = done * _TOLD_TIMES // total
                    rate = done / max(time.perf_counter() - start_s, 1e-9)
                    tell(f"{done:,} of {total:,} images, {rate:,.0f} images/s")
        except BaseException:
            pool.shutdown(cancel_futures=True)  # the rest need not be drawn
            raise


def made_in(directory: Path) -> dict[str, Any] | None:
    """Return the manifest of the drawn set in a directory; None if there is none."""
    manifest = manifest_of(directory)
    if manifest is None or not isinstance(manifest.get("made"), dict):
        return None
    counts = manifest.get("counts")
    if not isinstance(counts, dict) or not all(isinstance(counts.get(split), int) for split in SPLITS):
        raise SourceError(f"{directory / MANIFEST} is damaged; delete {directory} and make the set again")
    return manifest
