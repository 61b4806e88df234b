"""The user's choices: which samples an index is of, what their images and labels are called, and splits."""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from superdl.super_wire.errors import ConfigError
from superdl.super_wire.ids import MAIN_FIELD, MAX_FIELDS, checked_field
from superdl.super_wire.redaction import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "EVERY_SPLIT",
    "LABELS",
    "SPLITS",
    "Choices",
    "fields_in",
    "folders_of",
    "keys_of_split",
    "star_of",
]

LABELS = ("auto", "numbers", "folder", "shard", "none", "yolo")
"""Where labels come from, as ``--labels`` names it."""

EVERY_SPLIT = "all"
"""The name that takes the splits of a source together."""

SPLITS = frozenset({"train", "training", "val", "valid", "validation", "dev"})
"""Names of splits, as the Hub knows them."""
SPLITS |= {"test", "testing", "eval", "evaluation"}

_OF_HUB = re.compile(r"(?:.*-)?([^-]+)-[0-9]{5}-of-[0-9]{5}\.parquet")
_SPLITS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Choices:
    """The options of the command; ``None`` means the usual. ``superdl index --help`` explains them.

    ``fields`` are pairs of name and pattern, see :func:`fields_in`; ``only`` is a pattern of keys.
    """

    image_field: str | None = None
    label_field: str | None = None
    labels: str = "auto"
    missing_label: str | None = None
    coco: str | None = None
    fields: tuple[tuple[str, str], ...] = ()
    key_at: str = "first-dot"
    only: str | None = None
    split: str | None = None

    @property
    def reads_labels(self) -> bool:
        """Whether labels come out of the shards."""
        return self.labels in {"auto", "numbers"}

    @property
    def of_loose_images(self) -> bool:
        """Whether only images that are objects of their own can be meant."""
        return self.coco is not None or self.missing_label is not None or self.labels == "yolo"

    def takes(self, key: str) -> bool:
        """Return whether an object may be a sample or a shard of the index."""
        return self.only is None or fnmatch.fnmatchcase(key, self.only)

    def is_image(self, name: str) -> bool:
        """Return whether a file's name is an image's, or that of another field."""
        if self.fields:
            return any(star_of(pattern, name) is not None for _, pattern in self.fields)
        from superdl.coordinator.catalog.listing import is_image

        return name.endswith(f".{self.image_field}") if self.image_field else is_image(name)


def fields_in(text: str) -> tuple[tuple[str, str], ...]:
    """Parse fields as ``image=images/*.jpg,mask=masks/*.png``, ``image`` first; ``jpg`` is ``*.jpg``.

    The files of a sample have the same text where their patterns have ``*``.

    Raises:
        ConfigError: it is none of that.
    """
    pairs = [part.partition("=")[::2] for part in text.split(",")]
    fields = {checked_field(name): pattern if "*" in pattern else f"*.{pattern}" for name, pattern in pairs}
    patterns = all(pattern and pattern.count("*") <= 1 for _, pattern in pairs)
    if not patterns or MAIN_FIELD not in fields or not 1 < len(fields) == len(pairs) <= MAX_FIELDS:
        raise ConfigError(
            f"--fields names {MAIN_FIELD} and up to {MAX_FIELDS - 1} others, each once, by extensions "
            "(image=jpg,mask=png) or names with one * ('image=images/*.jpg,mask=masks/*.png'); not "
            f"{text[:80]!r}"
        )
    return tuple(sorted(fields.items(), key=lambda field: (field[0] != MAIN_FIELD, field[0])))


def star_of(pattern: str, name: str) -> str | None:
    """Return the text of a name where its pattern has ``*``; ``None`` where it does not fit."""
    before, _, behind = pattern.partition("*")
    name = name.removeprefix("./")
    end = len(name) - len(behind)
    fits = name.startswith(before) and name.endswith(behind) and end > len(before)
    return name[len(before) : end] if fits else None


def folders_of(name: str) -> list[str]:
    """Return the folders in which a file lies, from the outermost on."""
    return name.removeprefix("./").split("/")[:-1]


def keys_of_split(keys: Sequence[str], split: str | None, url: str, *, of_shards: bool) -> list[str]:
    """Return the keys of one split; without its name, all of them.

    ``of_shards``: names of files tell their split too, not only those of folders.

    Raises:
        ConfigError: they are of several splits, and none was named; or none is of this one.
    """
    splits = {key: _split_of(key, of_shards=of_shards) for key in keys}
    counts = sorted(Counter(name for name in splits.values() if name).items())
    listed = ", ".join(f"{shown(name)} ({count:,} files)" for name, count in counts[:_SPLITS_SHOWN])
    if split is None and len(counts) > 1:
        raise ConfigError(f"{url} holds the splits {listed}: pick one by --split NAME, or all by --split all")
    if split in {None, EVERY_SPLIT}:
        return list(keys)
    if split not in dict(counts):
        raise ConfigError(f"{url}: no file is of the split {split!r}; its splits are {listed or 'not named'}")
    return [key for key, name in splits.items() if name == split]


def _split_of(key: str, *, of_shards: bool) -> str:
    """Return the split that a path names; empty if it names none."""
    base = posixpath.basename(key)
    words = folders_of(key) + (re.split(r"[-_.]", base) if of_shards else [])
    named = next((word for word in words if word.lower() in SPLITS), "")
    of_hub = _OF_HUB.fullmatch(base) if of_shards and not named else None
    return of_hub[1] if of_hub else named
