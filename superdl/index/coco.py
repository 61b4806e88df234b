"""The boxes of ``instances_*.json``, as COCO writes them: of each image a label of one form.

``boxes`` are (left, top, right, bottom) in pixels, as torchvision's models take them; ``classes`` are COCO's
category ids, the same in every split; ``crowd`` is 1 where a box is around many; ``size`` is (height, width).
"""

from __future__ import annotations

import json
import math
import operator
import posixpath
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from superdl.index.shard import Shards
from superdl.super_wire.errors import SourceError

if TYPE_CHECKING:
    from superdl.index.shard import Label, Shard

__all__ = ["coco_labels", "labels_in"]

_BYTES = 2**30


class _Box(NamedTuple):
    image: Any
    category: int
    crowd: int
    place: tuple[float, ...]


def coco_labels(url: str) -> dict[str, Label]:
    """The labels in a file on this machine or in S3; raises as :func:`labels_in`."""
    from superdl.coordinator.catalog import parse_source

    folder, name = posixpath.split(url)
    with closing(Shards(parse_source(folder or "."), threading.Event())) as shards:
        file = shards.open(name)
        labels = labels_in(file)
        file.close()
    return labels


def labels_in(file: Shard) -> dict[str, Label]:
    """By the ``file_name`` of each image its label.

    Raises:
        SourceError: the file is too large, or is not what COCO writes; the message says why.
    """
    if file.size > _BYTES:
        raise SourceError(f"--coco {file.url}: it has {file.size:,} bytes; at most {_BYTES:,} are read")
    try:
        return _labels_of(json.loads(file.read(0, file.size), object_hook=_slimmed))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise SourceError(f"--coco {file.url}: it is no instances_*.json of COCO: {error!r}"[:400]) from error


def _labels_of(said: dict[str, Any]) -> dict[str, Label]:
    labels, of_id = dict[str, Any](), dict[Any, Any]()
    for image in said["images"]:
        size = [operator.index(image[side]) for side in ("height", "width")]
        label = {"image_id": operator.index(image["id"]), "size": size}
        label |= {"boxes[]": [], "classes[]": [], "crowd[]": []}
        labels[posixpath.normpath(image["file_name"])] = of_id[image["id"]] = label
    if twice := len(said["images"]) - min(len(labels), len(of_id)):
        raise ValueError(f"{twice:,} images have the id or the file_name of another one")
    for number, box in enumerate(said["annotations"]):
        if not isinstance(box, _Box) or box.image not in of_id:
            raise ValueError(f"annotation {number} has no bbox, or is of no image")
        label = of_id[box.image]
        label["boxes[]"].append(box.place)
        label["classes[]"].append(box.category)
        label["crowd[]"].append(box.crowd)
    return labels


def _slimmed(found: dict[str, Any]) -> Any:
    """Of an annotation what a label needs: outlines are most of the file."""
    if "bbox" not in found:
        return found
    x, y, width, height = map(float, found["bbox"])
    place = x, y, x + width, y + height
    if not all(map(math.isfinite, place)):
        raise ValueError(f"the bbox {found['bbox']}")
    return _Box(
        found["image_id"],
        operator.index(found["category_id"]),
        operator.index(found.get("iscrowd", 0)),
        place,
    )
