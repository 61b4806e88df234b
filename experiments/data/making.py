"""Makes a set of drawn pictures once: looks what is there, and for room, and has it drawn whole.

Drawing is `experiments.data.drawing`'s, the table of sets `experiments.data.made_sets`'s.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superdl.experiments.data.made_sets import SPLITS, MadeSet
from superdl.experiments.data.whole_directory import (
    MANIFEST,
    check_room,
    is_vacant,
    manifest_of,
    written_whole,
)
from superdl.super_wire.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["made_in", "make_set"]

_TOLD_TIMES = 10
_MEGABYTE = 1e6


def make_set(
    made: MadeSet,
    directory: str | Path,
    *,
    samples: int | None = None,
    seed: int = 0,
    processes: int | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Path:
    """Write a set below ``directory`` as ``train/<class>/*`` and ``val/<class>/*``.

    A directory that already holds exactly this set is checked and left as it is. Equal ``samples`` and
    ``seed`` give equal files, however many processes draw them.

    Args:
        made: which set.
        directory: where; nothing may be there but this set or an empty directory.
        samples: how many training images; None: as many as the whole set has.
        seed: of all that is drawn.
        processes: how many draw; None: as many as are worth it.
        tell: gets lines for people.

    Returns the directory's absolute path.

    Raises:
        ConfigError: too few samples, no room, or a place that cannot be written.
        SourceError: something else is there, or a set that is damaged.

    """
    from superdl.experiments.data.drawing import (  # numpy and Pillow: not for a look
        Drawing,
        draw,
        processes_for,
    )

    target = Path(directory).expanduser().absolute()
    counts = made.counts(samples)
    manifest = _manifest(made, counts, seed)
    if not is_vacant(target):
        _check_standing(target, manifest)
        return target
    total = sum(counts.values())
    size = made.disk_bytes(total)
    less = f"ask for fewer images ({made.classes:,} is the least)"
    check_room(target, size_bytes=size, files=total, what=f"{made.name} of {total:,} images", less=less)
    with written_whole(target, manifest) as staging:
        drawing = Drawing(made, seed, counts, str(staging))
        processes = processes_for(drawing) if processes is None else processes
        tell(
            f"drawing {made.name}: {counts['train']:,} training and {counts['val']:,} validation images, "
            f"about {size / _MEGABYTE:,.0f} MB, into {target}, {processes} process(es)"
        )
        draw(drawing, staging, processes, _Progress(total, tell).add)
    return target


def made_in(directory: Path) -> dict[str, Any] | None:
    """The manifest of the made set that stands in a directory; None where there is none.

    Raises:
        SourceError: there is one that cannot be read, or says nothing of counts.

    """
    manifest = manifest_of(directory)
    if manifest is None or not isinstance(manifest.get("made"), dict):
        return None
    counts = manifest.get("counts")
    if not isinstance(counts, dict) or not all(isinstance(counts.get(split), int) for split in SPLITS):
        raise SourceError(f"{directory / MANIFEST} is damaged; delete {directory} and make the set again")
    return manifest


def _manifest(made: MadeSet, counts: dict[str, int], seed: int) -> dict[str, Any]:
    """What decides the content, as JSON has it; compared when a set is used again."""
    from superdl.experiments.data.pictures import PICTURE_FORMAT, colour_mode

    modes = Counter(colour_mode(made, index) for count in counts.values() for index in range(count))
    manifest = {
        "name": made.name,
        "format": PICTURE_FORMAT,
        "seed": seed,
        "counts": counts,
        "colour_modes": dict(sorted(modes.items())),
        "made": asdict(made),
    }
    loaded: dict[str, Any] = json.loads(json.dumps(manifest))
    return loaded


def _check_standing(target: Path, manifest: dict[str, Any]) -> None:
    """Raise unless the set that the manifest describes stands there, whole."""
    found = manifest_of(target)
    wanted = f"{manifest['name']} of {manifest['counts']['train']:,} training images, seed {manifest['seed']}"
    if found is None or "made" not in found:
        raise SourceError(
            f"cannot write {manifest['name']} to {target}: it holds other files; "
            "name a new or an empty directory"
        )
    if found != manifest:
        raise SourceError(
            f"{target} holds another set ({_described(found)}) than the one wanted ({wanted}): "
            "delete it, or name another directory"
        )
    counts = {split: _files_in(target / split) for split in SPLITS}
    if counts != manifest["counts"]:
        raise SourceError(
            f"the set in {target} is damaged: there are {counts} images, not {manifest['counts']}; "
            "delete the directory and make it again"
        )


def _described(found: dict[str, Any]) -> str:
    counts = found.get("counts")
    train = counts.get("train") if isinstance(counts, dict) else None
    return (
        f"{found.get('name')} of {train} training images, seed {found.get('seed')}, format "
        f"{found.get('format')}; {MANIFEST} has all of it"
    )


def _files_in(split: Path) -> int:
    try:
        with os.scandir(split) as folders:
            return sum(_entries(folder.path) for folder in folders if folder.is_dir())
    except FileNotFoundError:
        return 0


def _entries(folder: str) -> int:
    with os.scandir(folder) as files:
        return sum(1 for file in files if file.is_file())


class _Progress:
    """Tells each tenth, with the rate."""

    def __init__(self, total: int, tell: Callable[[str], None]) -> None:
        self._total, self._tell = total, tell
        self._done = self._told = 0
        self._start_s = time.perf_counter()

    def add(self, count: int) -> None:
        self._done += count
        tenths = self._done * _TOLD_TIMES // self._total
        if tenths > self._told:
            self._told = tenths
            rate = self._done / max(time.perf_counter() - self._start_s, 1e-9)
            self._tell(f"{self._done:,} of {self._total:,} images, {rate:,.0f} images/s")
