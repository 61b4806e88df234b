"""Images outside shards, and labels in files beside images (also in archives) or in COCO's format.

A label file contains a number, a string, JSON with a label, or YOLO's boxes. COCO's ``boxes`` are (left,
top, right, bottom) in pixels, as torchvision's models expect. ``classes`` are category ids, the same in
every split. ``crowd`` is 1 for a box around many objects.
"""

from __future__ import annotations

import json
import math
import operator
import posixpath
import re
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from superdl.coordinator.catalog import parse_source
from superdl.index.choices import star_of
from superdl.index.shard import Shards
from superdl.super_wire.errors import SourceEmptyError, SourceError, SourceNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from superdl.index.choices import Choices
    from superdl.index.shard import Label, Shard

    Fail = Callable[[str], Exception]

LABEL_FILE_BYTES = 2**20

_LABELS = ("cls", "txt")
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_COCO_BYTES = 2**30
_BOX = 4  # numbers


def label_in(name: str, content: bytes, choices: Choices, fail: Fail) -> Label | None:
    """Return the label in a file, or ``None`` if the file is JSON with no label."""
    if name.endswith(".json") and choices.labels != "yolo":
        return _json_label(content, choices.label_field or "label", fail)
    try:
        text = content.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise fail(f"the label is not UTF-8: {error}") from error
    if choices.labels == "yolo":
        return _boxes(text, fail)
    if not text:
        raise fail(f"the label is empty or longer than {LABEL_FILE_BYTES} bytes")
    return int(text) if _INTEGER.fullmatch(text) else text


def _json_label(content: bytes, field: str, fail: Fail) -> Label | None:
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise fail(f"not JSON: {error}") from error
    label = fields.get(field) if isinstance(fields, dict) else None
    return None if label is None else number_or_text(label, fail)


def number_or_text(value: object, fail: Fail) -> Label:
    """Check that a value can be a label and return it, converting booleans to 0 or 1."""
    if isinstance(value, int | float | str):
        return int(value) if isinstance(value, bool) else value
    raise fail(f"the label must be a number or a string, not {str(value)[:60]!r}")


def _boxes(text: str, fail: Fail) -> Label:
    boxes, classes = list[list[float]](), list[int]()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            kind, *box = map(float, line.split())
        except ValueError:
            kind, box = math.nan, []
        if not kind.is_integer() or len(box) != _BOX or not all(map(math.isfinite, box)):
            raise fail(
                f"line {number} must contain a class, and the centre and size of a box, not {line[:60]!r}"
            )
        boxes.append(box)
        classes.append(int(kind))
    return {"boxes[]": boxes, "classes[]": classes}


class LooseImages:
    """The images among ``chosen`` objects of a source, with their labels and other fields.

    ``versions`` maps the keys of all objects, relative to the source, to their versions. ``keys`` are sorted
    bytewise. ``skipped`` counts objects that are neither images nor labels. ``unlabelled`` counts images
    without a label file, which raise ``SourceNotFoundError`` unless ``missing_label`` is set.
    """

    def __init__(
        self, shards: Shards, versions: Mapping[str, str], chosen: Sequence[str], choices: Choices
    ) -> None:
        self._shards, self._versions, self._choices, url = shards, versions, choices, shards.root.url
        self._coco = dict[str, "Label"]()
        if choices.coco:  # a file on this machine or in S3
            folder, name = posixpath.split(choices.coco)
            self._coco = coco_in(Shards(parse_source(folder or "."), threading.Event()).open(name))
        if missing := sorted(self._coco.keys() - versions.keys()):
            why = f"lacks {len(missing):,} of the images in {choices.coco}, such as {missing[0][:200]!r}"
            raise SourceNotFoundError(f"{url} {why}: the source must be the folder that contains them")
        self._parts = {key: by_field for key in chosen if (by_field := self._parts_of(key)) is not None}
        self.keys = sorted(self._parts, key=str.encode)
        if not self.keys:
            fields = " with its fields beside it" * bool(choices.fields)
            raise SourceEmptyError(f"{url} contains no image{fields}")
        reads = not choices.coco and choices.labels not in {"folder", "none"}
        self._files = {
            key: next((name for name in self._label_names(key) if name in versions), "")
            for key in self.keys
            if reads
        }
        field_keys = {key for by_field in self._parts.values() for key in by_field.values()}
        self.skipped = len(versions) - len({*self.keys} | field_keys | {*self._files.values()} - {""})
        bare = [key for key, file in self._files.items() if not file]
        self.unlabelled = len(bare)
        if bare and choices.missing_label is None:
            why = f"{len(bare):,} of {len(self.keys):,} images have no label file, such as {bare[0]}"
            names = ", ".join(self._label_names(bare[0]))
            remedy = (
                "to label images by their folder, use --labels folder; to label these, use --missing-label "
                "TEXT ('' for no boxes)"
            )
            raise SourceNotFoundError(f"{url}: {why} (there is no {names}); {remedy}")

    def rows(self, keys: Sequence[str]) -> list[dict[str, Any]]:
        """Return the rows of some images; raise ``SourceError`` if a label file is invalid."""
        return [
            {"key": key, "label": self._label(key), "version": self._versions[key]}
            | {f"{name}.key": field_key for name, field_key in self._parts[key].items()}
            | {f"{name}.version": self._versions[field_key] for name, field_key in self._parts[key].items()}
            for key in keys
        ]

    def _parts_of(self, key: str) -> dict[str, str] | None:
        """Return the keys of an image's other fields, or ``None`` if it is no image or a field is missing."""
        choices = self._choices
        if choices.coco or not choices.fields:
            return {} if (key in self._coco if choices.coco else choices.is_image(key)) else None
        star = star_of(choices.fields[0][1], key)
        fields = {name: pattern.replace("*", star or "") for name, pattern in choices.fields[1:]}
        return fields if star is not None and self._versions.keys() >= {*fields.values()} else None

    def _label_names(self, key: str) -> list[str]:
        extensions = (self._choices.label_field,) if self._choices.label_field else _LABELS
        names = []
        for extension in ("txt",) if self._choices.labels == "yolo" else (*extensions, "json"):
            names.append(f"{posixpath.splitext(key)[0]}.{extension}")
            # Or below labels, if the image is below images.
            above, images, below = f"/{names[-1]}".rpartition("/images/")
            names += [f"{above}/labels/{below}".removeprefix("/")] if images else []
        return names

    def _label(self, key: str) -> Label:
        choices, name = self._choices, self._files.get(key, "")
        if choices.coco or choices.labels == "none":
            return self._coco.get(key, 0)
        if choices.labels == "folder":
            label: Label | None = posixpath.basename(posixpath.dirname(key))
        else:
            content = str(choices.missing_label).encode()
            if name:
                content = self._shards.read(name, self._versions[name], LABEL_FILE_BYTES)
            fail = partial(self._error, name or f"{key} without a label file")
            label = label_in(name, content, choices, fail)
        if label is None or label == "":
            raise self._error(key, "no label: select the source of labels with --label-field or --labels")
        return label

    def _error(self, key: str, reason: str) -> SourceError:
        return SourceError(f"{self._shards.url(key)}: {reason}")


def coco_in(file: Shard) -> dict[str, Label]:
    """Return labels by ``file_name``; raise ``SourceError`` if the file is not in COCO's format."""
    try:
        return _labels_of(json.loads(file.whole(_COCO_BYTES), object_hook=_slimmed))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise SourceError(f"--coco {file.url}: not an instances_*.json of COCO: {error!r}"[:400]) from error


def _labels_of(instances: dict[str, Any]) -> dict[str, Label]:
    labels, by_id = dict[str, Any](), dict[Any, Any]()
    for image in instances["images"]:
        size = [operator.index(image[side]) for side in ("height", "width")]
        label = {"image_id": operator.index(image["id"]), "size": size}
        label |= {"boxes[]": [], "classes[]": [], "crowd[]": []}
        labels[posixpath.normpath(image["file_name"])] = by_id[image["id"]] = label
    if twice := len(instances["images"]) - min(len(labels), len(by_id)):
        raise ValueError(f"{twice:,} images have the same id or file_name as another one")
    for number, box in enumerate(instances["annotations"]):
        if not isinstance(box, tuple) or box[0] not in by_id:
            raise ValueError(f"annotation {number} has no bbox, or belongs to no image")
        for name, value in zip(("boxes[]", "classes[]", "crowd[]"), box[1:], strict=True):
            by_id[box[0]][name].append(value)
    return labels


def _slimmed(value: dict[str, Any]) -> Any:
    # Outlines are big, so they are dropped while the file is parsed.
    if "bbox" not in value:
        return value
    x, y, width, height = map(float, value["bbox"])
    box = x, y, x + width, y + height
    if not all(map(math.isfinite, box)):
        raise ValueError(f"invalid bbox {value['bbox']}")
    kind, crowd = operator.index(value["category_id"]), operator.index(value.get("iscrowd", 0))
    return value["image_id"], box, kind, crowd
