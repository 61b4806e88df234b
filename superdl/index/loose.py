"""Images that are objects of their own, with labels in files beside them or in one file of COCO.

A file beside an image has its name with another extension. It lies in the same folder, or below ``labels``
where the image lies below ``images``, as YOLO has it.
"""

from __future__ import annotations

import posixpath
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from superdl.index.coco import coco_labels
from superdl.index.fields import star_of
from superdl.index.label_files import LABEL_FILE_BYTES, boxes_in, json_label, text_label
from superdl.super_wire.errors import ConfigError, SourceEmptyError, SourceError, SourceNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from superdl.coordinator.catalog import Source
    from superdl.index.shard import Choices, Label

__all__ = ["LooseRow", "beside", "loose_readers"]

_LABELS = ("cls", "txt")
_AT_A_TIME = 256


class LooseRow(NamedTuple):
    """A row of the list; the fields are its columns."""

    key: str
    label: Label
    version: str
    fields: Mapping[str, Any] = {}  # none is changed, and rows are pickled


def loose_readers(
    place: Source, versions: Mapping[str, str], chosen: Sequence[str], choices: Choices
) -> tuple[list[Callable[[], list[LooseRow]]], int, int]:
    """What reads the rows of some images each, in the order of their keys' bytes; how many objects are
    neither image nor label; and how many images have no label file.

    ``versions`` are of all objects, by key relative to the source; ``chosen`` the keys that images may have.

    Raises:
        SourceNotFoundError: an image has no label file, and nothing says what that means; or COCO names
            images that are not there.
    """
    if choices.coco is None:
        stars = {key: star_of(choices.fields[0][1], key) for key in chosen} if choices.fields else {}
        parts = {
            key: {name: pattern.replace("*", star) for name, pattern in choices.fields[1:]}
            for key, star in stars.items()
            if star is not None
        }
        images = [key for key in chosen if choices.is_image(key)]
        if choices.fields:
            images = [key for key, theirs in parts.items() if versions.keys() >= {*theirs.values()}]
        files = _LabelFiles(place, versions, images, choices)
        label_of: Callable[[str], Label] = files.label_of
        others = len(versions) - len(images) - files.count
        unlabelled = files.missing
        others -= len({other for key in images for other in parts.get(key, {}).values()})
    else:
        labels = coco_labels(choices.coco)
        if gone := sorted(labels.keys() - versions.keys()):
            raise SourceNotFoundError(
                f"{place.url} lacks {len(gone):,} of the images that {choices.coco} names, such as "
                f"{gone[0][:200]!r}: the source is the folder in which they lie"
            )
        images, label_of, parts = [key for key in chosen if key in labels], labels.__getitem__, {}
        others, unlabelled = len(versions) - len(images), 0
    if not images:
        told = " with its fields beside it" if choices.fields else ""
        raise SourceEmptyError(f"{place.url} holds no image{told}")
    images.sort(key=str.encode)

    def rows(some: Sequence[str]) -> list[LooseRow]:
        return [LooseRow(key, label_of(key), versions[key], _columns(parts.get(key, {}))) for key in some]

    def _columns(theirs: Mapping[str, str]) -> dict[str, str]:
        named = {f"{name}.key": other for name, other in theirs.items()}
        return named | {f"{name}.version": versions[other] for name, other in theirs.items()}

    starts = range(0, len(images), _AT_A_TIME)
    return [partial(rows, images[start : start + _AT_A_TIME]) for start in starts], others, unlabelled


def beside(key: str, extension: str, folder: str = "labels") -> Iterator[str]:
    """Where a file of this extension may lie that goes with an image."""
    name = f"{posixpath.splitext(key)[0]}.{extension}"
    yield name
    above, images, below = f"/{name}".rpartition("/images/")
    if images:
        yield f"{above}/{folder}/{below}".removeprefix("/")


class _LabelFiles:
    """Labels in files beside images; ``count`` is how many files there are, ``missing`` how many are not.

    They are read as a local function of one's own reads images: in the version that was listed, and links may
    lead wherever this user may read.
    """

    def __init__(
        self, place: Source, versions: Mapping[str, str], images: Sequence[str], choices: Choices
    ) -> None:
        from superdl.lambda_prefetch.handler import open_source
        from superdl.lambda_prefetch.settings import FunctionSettings

        if choices.labels == "shard":
            raise ConfigError("--labels shard: these images lie in no shard")
        self._place, self._versions, self._choices = place, versions, choices
        settings = FunctionSettings.from_environment()
        self._source = open_source(place.bucket, replace(settings, file_roots=settings.file_roots or ("/",)))
        own = (choices.label_field,) if choices.label_field else _LABELS
        self._extensions = ("txt",) if choices.labels == "yolo" else (*own, "json")
        unread = choices.labels in {"folder", "none"}
        names = {} if unread else {key: self._names_of(key) for key in images}
        self._files = {key: next((n for n in some if n in versions), "") for key, some in names.items()}
        self.count = len(set(self._files.values()) - {""})
        bare = [key for key, name in self._files.items() if not name]
        self.missing = len(bare)
        if bare and choices.missing_label is None:
            raise SourceNotFoundError(
                f"{place.url}: {len(bare):,} of {len(images):,} images have no label file, such as {bare[0]} "
                f"(not {', '.join(names[bare[0]])}): --missing-label TEXT stands for it (in YOLO '': "
                "no box), --labels folder takes the folder's name"
            )

    def label_of(self, key: str) -> Label:
        """The label of an image; ``SourceError`` names the file that is wrong."""
        choices = self._choices
        if choices.labels == "none":
            return 0
        if choices.labels == "folder":
            label: Label | None = posixpath.basename(posixpath.dirname(key))
        elif name := self._files[key]:
            label = self._read(name, self._content(name))
        else:
            label = self._read(f"{key} without a label file", str(choices.missing_label).encode())
        if label is None or label == "":
            raise self._error("it has no label: say where labels are by --label-field or --labels", key)
        return label

    def _names_of(self, key: str) -> list[str]:
        return [name for extension in self._extensions for name in beside(key, extension)]

    def _read(self, name: str, content: bytes) -> Label | None:
        fail = partial(self._error, key=name)
        if self._choices.labels == "yolo":
            return boxes_in(content, fail)
        if name.endswith(".json"):
            return json_label(content, self._choices.label_field or "label", fail)
        return text_label(content, fail)

    def _content(self, name: str) -> bytes:
        from superdl.lambda_prefetch.sources import SampleFailedError

        how: Any = {"limit_bytes": LABEL_FILE_BYTES, "reserve": lambda _: None}
        try:
            return bytes(self._source.read(self._place.prefix + name, self._versions[name], **how))
        except SampleFailedError as error:
            raise self._error(f"its label cannot be read: {error.why}", name) from error

    def _error(self, reason: str, key: str) -> SourceError:
        return SourceError(f"{self._place.url.rstrip('/')}/{key}: {reason}")
