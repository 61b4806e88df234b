"""The user's choices: which samples and splits to index, and how images and labels are named."""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from superdl.super_wire.display import shown
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.ids import MAIN_FIELD, MAX_FIELDS, checked_field

if TYPE_CHECKING:
    from collections.abc import Sequence

LABELS = ("auto", "numbers", "folder", "none", "yolo")
EVERY_SPLIT = "all"
SPLITS = frozenset({"train", "training", "val", "valid", "validation", "dev", "test", "testing"})
SPLITS |= {"eval", "evaluation"}

_HUB_SHARD = re.compile(r"(?:.*-)?([^-]+)-[0-9]{5}-of-[0-9]{5}\.parquet")
_SPLITS_SHOWN = 20


def _option(text: str, metavar: str | None = None, default: Any = None, of: Any = None) -> Any:
    return field(default=default, metadata={"help": text, "metavar": metavar, "choices": of})


@dataclass(frozen=True, slots=True)
class Choices:
    """The command's options that choose samples. ``fields`` are pairs of name and pattern."""

    only: str | None = _option(
        "index only shards or images whose key matches this, such as 'train-*'", "PATTERN"
    )
    split: str | None = _option(
        "the split to read if file or folder names contain several, or all to read every split", "NAME"
    )
    key_at: str = _option(
        "end of the key in the name of an archive's file: the first dot, as in WebDataset, or the last",
        default="first-dot",
        of=("first-dot", "last-dot"),
    )
    image_field: str | None = _option(
        "column, feature or extension of the image, if there are several", "NAME"
    )
    label_field: str | None = _option("column, feature, extension or .json field of the label", "NAME")
    labels: str = _option(
        "source of labels: the shard or a file beside the image, else the first folder (auto); numbers "
        "for ClassLabels; the folder that contains the image; none; YOLO's boxes",
        default="auto",
        of=LABELS,
    )
    missing_label: str | None = _option("label of images without a label file: '' for no boxes, or 0", "TEXT")
    coco: str | None = _option(
        "read the boxes of SOURCE's images from instances_*.json, a path or s3://", "FILE"
    )
    fields: tuple[tuple[str, str], ...] = _option(
        "several files per sample: image=jpg,mask=png or 'image=images/*.jpg,mask=masks/*.png'", "FIELDS", ()
    )

    @property
    def reads_labels(self) -> bool:
        """Return whether labels come from the shards."""
        return self.labels in {"auto", "numbers"}

    @property
    def of_loose_images(self) -> bool:
        """Return whether the options make sense only for images outside shards."""
        return self.coco is not None or self.missing_label is not None or self.labels == "yolo"

    def takes(self, key: str) -> bool:
        """Return whether an object may be indexed, as a sample or as a shard."""
        return self.only is None or fnmatch.fnmatchcase(key, self.only)

    def is_image(self, name: str) -> bool:
        """Return whether a file is an image or another field, judging by its name."""
        if self.fields:
            return any(star_of(pattern, name) is not None for _, pattern in self.fields)
        from superdl.coordinator.catalog.listing import is_image

        return name.endswith(f".{self.image_field}") if self.image_field else is_image(name)


def fields_in(text: str) -> tuple[tuple[str, str], ...]:
    """Parse ``image=images/*.jpg,mask=masks/*.png``, and put ``image`` first; ``jpg`` means ``*.jpg``."""
    pairs = [part.partition("=")[::2] for part in text.split(",")]
    fields = {checked_field(name): pattern if "*" in pattern else f"*.{pattern}" for name, pattern in pairs}
    # The files of a sample have the same text in place of the one *.
    patterns = all(pattern and pattern.count("*") <= 1 for _, pattern in pairs)
    if not patterns or MAIN_FIELD not in fields or not 1 < len(fields) == len(pairs) <= MAX_FIELDS:
        forms = "extensions (image=jpg,mask=png) or names with one * ('image=images/*.jpg,mask=masks/*.png')"
        names = f"{MAIN_FIELD} and up to {MAX_FIELDS - 1} others, each once"
        raise ConfigError(f"--fields must list {names}, as {forms}, not {text[:80]!r}")
    return tuple(sorted(fields.items(), key=lambda field: (field[0] != MAIN_FIELD, field[0])))


def star_of(pattern: str, name: str) -> str | None:
    """Return the text that the pattern's ``*`` matches in a name, or ``None`` if the name does not match."""
    prefix, _, suffix = pattern.partition("*")
    name = name.removeprefix("./")
    end = len(name) - len(suffix)
    fits = name.startswith(prefix) and name.endswith(suffix) and end > len(prefix)
    return name[len(prefix) : end] if fits else None


def folders_of(name: str) -> list[str]:
    """Return the folders that contain a file, outermost first."""
    return name.removeprefix("./").split("/")[:-1]


def keys_of_split(keys: Sequence[str], split: str | None, url: str, *, of_shards: bool) -> list[str]:
    """Return the keys of one split; raise ``ConfigError`` if it is missing, or not chosen among several."""
    splits = {key: _split_of(key, of_shards=of_shards) for key in keys}
    counts = sorted(Counter(name for name in splits.values() if name).items())
    listed = ", ".join(f"{shown(name)} ({count:,} files)" for name, count in counts[:_SPLITS_SHOWN])
    if split is None and len(counts) > 1:
        raise ConfigError(
            f"{url} has the splits {listed}: choose one with --split NAME, or all with --split all"
        )
    if split in {None, EVERY_SPLIT}:
        return list(keys)
    if split not in dict(counts):
        raise ConfigError(
            f"{url}: no file belongs to the split {split!r}; its splits are {listed or 'not named'}"
        )
    return [key for key, name in splits.items() if name == split]


def _split_of(key: str, *, of_shards: bool) -> str:
    base = posixpath.basename(key)
    words = folders_of(key) + (re.split(r"[-_.]", base) if of_shards else [])
    split = next((word for word in words if word.lower() in SPLITS), "")
    hub_shard = _HUB_SHARD.fullmatch(base) if of_shards and not split else None
    return hub_shard[1] if hub_shard else split
