"""Fuzzers of what ``superdl index`` reads beside images and shards: label files, COCO's boxes, DALI's index.

An input passes if it is taken as it should be, or refused by an error of SUPER's own.
"""

from __future__ import annotations

import io
import json
import tarfile
from typing import TYPE_CHECKING, Any

from superdl.index.archives import indexed_members
from superdl.index.choices import Choices
from superdl.index.loose import coco_in, label_in
from superdl.index.shard import ShardError
from superdl.super_wire.errors import SourceError
from tests.hostile.fuzz_wire import any_value, mutate
from tests.superdl.index.shards import HeldShard

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

__all__ = ["FUZZERS"]

_TAR = io.BytesIO()
with tarfile.open(fileobj=_TAR, mode="w") as _archive:
    for _name, _size in (("x/1.jpg", 3), ("x/1.cls", 1), ("x/2.jpg", 600)):
        _info = tarfile.TarInfo(_name)
        _info.size = _size
        _archive.addfile(_info, io.BytesIO(bytes(_size)))
_DALI = b"v1.2 2\njpg 512 3 x/1.jpg cls 1536 1 x/1.cls\njpg 2560 600 x/2.jpg\n"


def _dali(chance: random.Random) -> None:
    tar = HeldShard(mutate(chance, _TAR.getvalue()) if chance.random() < 0.5 else _TAR.getvalue())
    try:
        found = indexed_members(tar, HeldShard(mutate(chance, _DALI), "a.idx"))
    except ShardError as error:
        assert len(str(error)) <= 1000  # noqa: PT017  # a refusal is right, if it is short
        return
    ends = [0]
    for info in found:
        assert ends[-1] < info.offset_data <= tar.size - info.size
        ends.append(info.offset_data + info.size)


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
    "DALI's index": _dali,
    "instances of COCO": _coco,
    "label file": _label_file,
}
"""Name -> makes one input and tries it; ``AssertionError`` where a user would see what nobody should."""
