"""Fuzzers of what ``superdl index`` reads beside images and shards: label files, COCO's boxes.

An input passes if it is taken as it should be, or refused by an error of SUPER's own.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from superdl.index.choices import Choices
from superdl.index.loose import coco_in, label_in
from superdl.super_wire.errors import SourceError
from tests.hostile.fuzz_wire import any_value, mutate
from tests.superdl.index.shards import HeldShard

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

__all__ = ["FUZZERS"]

_COCO = {
    "images": [{"id": 9, "file_name": "b.jpg", "height": 480, "width": 640}],
    "annotations": [
        {"image_id": 9, "category_id": 18, "bbox": [1, 2.5, 3, 4], "iscrowd": 0, "segmentation": []}
    ],
}


def _coco(chance: random.Random) -> None:
    said: Any = json.loads(json.dumps(_COCO))
    if chance.random() < 0.7:
        row = chance.choice([said, said["images"][0], said["annotations"][0]])
        row[chance.choice(list(row))] = any_value(chance)
    content = json.dumps(said, default=str).encode()
    try:
        labels = coco_in(HeldShard(mutate(chance, content) if chance.random() < 0.5 else content, "x.json"))
    except SourceError as error:
        assert len(str(error)) <= 1000  # noqa: PT017  # as above
        return
    for label in labels.values():
        assert len(label["boxes[]"]) == len(label["classes[]"]) == len(label["crowd[]"])


def _label_file(chance: random.Random) -> None:
    name, labels, good = chance.choice(
        [
            ("1.txt", "yolo", b"0 .5 .5 .25 1\n12 .1 .2 .3 4e-1\n"),
            ("1.txt", "auto", b"17\n"),
            ("1.json", "auto", b'{"label": [1, 2], "label": 7}'),
        ]
    )
    try:
        label_in(name, mutate(chance, good), Choices(labels=labels), SourceError)
    except SourceError as error:
        assert len(str(error)) <= 400  # noqa: PT017  # as above


FUZZERS: dict[str, Callable[[random.Random], None]] = {
    "instances of COCO": _coco,
    "label file": _label_file,
}
"""Name -> makes one input and tries it; ``AssertionError`` where a user would see what nobody should."""
