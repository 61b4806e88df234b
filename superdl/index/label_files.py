"""Labels out of files of their own: a number or a text, a field of JSON, the boxes of YOLO.

They lie beside an image in a tar, or as objects of their own. ``fail`` makes the error that names the file.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.index.shard import Label

    Fail = Callable[[str], Exception]

__all__ = ["LABEL_FILE_BYTES", "boxes_in", "json_label", "text_label"]

LABEL_FILE_BYTES = 2**20

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_BOX = 5
_LINE = "a line has a class, and a box's center x, center y, width and height in parts of the image"


def text_label(content: bytes, fail: Fail) -> Label:
    """The label that a file holds as a whole: a number, or a class's name."""
    text = _text(content, fail)
    if not text:
        raise fail(f"it is a label, and empty or longer than {LABEL_FILE_BYTES} bytes")
    return int(text) if _INTEGER.fullmatch(text) else text


def json_label(content: bytes, field: str, fail: Fail) -> Label | None:
    """The label in a field of JSON; ``None`` if it has none."""
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise fail(f"no JSON: {error}") from error
    label = fields.get(field) if isinstance(fields, dict) else None
    if isinstance(label, bool):
        return int(label)
    if label is None or isinstance(label, int | float | str):
        return label
    raise fail(f"the label is a number or a text; not {str(label)[:60]!r}")


def boxes_in(content: bytes, fail: Fail) -> Label:
    """What YOLO's file says of an image: a line for each box, none too."""
    boxes, classes = list[list[float]](), list[int]()
    for number, line in enumerate(_text(content, fail).splitlines(), 1):
        if not line.strip():
            continue
        try:
            kind, *box = map(float, line.split())
        except ValueError:
            kind, box = math.nan, []
        if not kind.is_integer() or len(box) != _BOX - 1 or not all(map(math.isfinite, box)):
            raise fail(f"line {number}: {_LINE}; not {line[:60]!r}")
        boxes.append(box)
        classes.append(int(kind))
    return {"boxes[]": boxes, "classes[]": classes}


def _text(content: bytes, fail: Fail) -> str:
    try:
        return content.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise fail(f"it is a label and not UTF-8: {error}") from error
