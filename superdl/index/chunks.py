"""MDS shards (MosaicML Streaming) and LitData's chunks: samples of columns, behind a table of offsets.

Both begin with the number of samples and where each begins and ends, in 32 bits. A sample begins with the
sizes of its columns: in MDS of those that have none by their kind, in LitData of all. Which columns there are
is in the ``index.json`` beside the shards.
"""

from __future__ import annotations

import json
import posixpath
import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from superdl.index.shard import Member

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from superdl.index.shard import Choices, Label, Shard

__all__ = ["INDEX_FILE", "Layout", "chunk_members", "layouts_of"]

INDEX_FILE = "index.json"

_INDEX_BYTES = 2**28
_TEXT_BYTES = 2**16
_U32 = 4
_OFFSETS_AT_A_TIME = 2**16
_LABELS = ("label", "cls", "class")
_IMAGES = frozenset({"jpeg", "png", "bytes", "image", "tifffile", "file"})
_NUMBERS = {
    **{
        f"{kind}{bits}": f"<{kind[0]}{bits // 8}"
        for kind in ("int", "uint", "float")
        for bits in (16, 32, 64)
    },
    "int8": "<i1",
    "uint8": "<u1",
    "int": "<i8",
    "float": "<f8",
    "bool": "?",
}
_DIGITS = frozenset({"str_int", "str_float"})
_TEXTS = frozenset({"str", "text"})


@dataclass(frozen=True, slots=True)
class Layout:
    """What the index says of a shard: samples, bytes (``None``: not said), and its columns in their order.

    ``kinds`` are the names by which the format calls how a column is written; ``sizes`` are the bytes of each
    column that has no size in the sample. ``format`` is ``mds`` or ``litdata``.
    """

    samples: int
    size: int | None
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    sizes: tuple[int | None, ...]
    format: str


def layouts_of(index: Shard) -> dict[str, Layout]:
    """Key of every shard that an ``index.json`` names, and its layout; none if it is no index of shards.

    Raises:
        ShardError: it names shards that cannot be read in place: compressed, encrypted, of another version.
    """
    folder = posixpath.dirname(index.key)
    if index.size > _INDEX_BYTES:
        return {}
    try:
        fields = json.loads(index.read(0, index.size))
        if not isinstance(fields, dict):
            return {}
        if "shards" in fields:
            rows = [_of_mds(index, row) for row in fields["shards"]]
        elif "chunks" in fields and "config" in fields:
            rows = _of_litdata(index, fields["chunks"], fields["config"])
        else:
            return {}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise index.error(f"it is no index of MDS or LitData that can be read: {error!r}") from error
    return {posixpath.normpath(posixpath.join(folder, name)): layout for name, layout in rows}


def _of_mds(index: Shard, row: Mapping[str, Any]) -> tuple[str, Layout]:
    if (row["format"], row["version"]) != ("mds", 2):
        raise index.refusal(
            f"it names shards of the format {row['format']!r}, version {row['version']}; MDS 2 is read"
        )
    if row.get("compression") or row.get("zip_data"):
        raise index.refusal(
            f"its shards are compressed ({row['compression']}), so that no sample can be read alone: write "
            "them without "
            "compression= (JPEGs and PNGs lose hardly any room by it)"
        )
    names, kinds, sizes = row["column_names"], row["column_encodings"], row["column_sizes"]
    # 0 is as good as none: so does Streaming read it.
    fixed = tuple(int(size) if size else None for size in sizes)
    if not len(names) == len(kinds) == len(sizes):
        raise ValueError("columns")
    file = row["raw_data"]
    return str(file["basename"]), Layout(
        int(row["samples"]), int(file["bytes"]), tuple(names), tuple(kinds), fixed, "mds"
    )


def _of_litdata(
    index: Shard, chunks: list[Mapping[str, Any]], config: Mapping[str, Any]
) -> list[tuple[str, Layout]]:
    for what in ("compression", "ipc_compression", "encryption"):
        if config.get(what):
            raise index.refusal(
                f"its chunks have {what} {config[what]!r}: write them with optimize(..., {what}=None)"
            )
    if config.get("item_loader") not in {None, "PyTreeLoader"}:
        raise index.refusal(
            f"its chunks are for {config['item_loader']}; those of PyTreeLoader, the default, are read"
        )
    kinds = tuple(map(str, config["data_format"]))
    names = _leaves(config.get("data_spec"), len(kinds))
    return [
        (
            str(chunk["filename"]),
            Layout(
                int(chunk["chunk_size"]),
                int(chunk["chunk_bytes"]),
                names,
                kinds,
                (None,) * len(kinds),
                "litdata",
            ),
        )
        for chunk in chunks
    ]


def _leaves(spec: str | None, count: int) -> tuple[str, ...]:
    """The names of a sample's leaves: keys of a flat dict, else their places."""
    tree = json.loads(spec)[1] if spec else {}
    flat = all(child.get("type") is None for child in tree.get("children_spec", ()))
    if flat and str(tree.get("type")).endswith("dict"):
        context = tree["context"]
        keys = json.loads(context) if isinstance(context, str) else context
        if len(keys) == count:
            return tuple(map(str, keys))
    return tuple(map(str, range(count)))


def chunk_members(shard: Shard, choices: Choices, layout: Layout) -> Iterator[Member]:
    """The images in a shard, each named by its place in it.

    Raises:
        ShardError: it is not what its index says, or its samples do not fit into it.
    """
    if layout.size not in {None, shard.size}:
        raise shard.error(
            f"it has {shard.size:,} bytes, {INDEX_FILE} says {layout.size:,}: it is cut off, or newer than "
            "its index"
        )
    (samples,) = struct.unpack("<I", shard.read(0, _U32))
    if samples != layout.samples:
        raise shard.error(f"it says that it has {samples:,} samples, {INDEX_FILE} says {layout.samples:,}")
    image = _image_column(shard, layout, choices)
    label = _label_column(shard, layout, choices) if choices.reads_labels else None
    header = 2 * _U32 + _U32 * samples
    before = header
    for first in range(0, samples, _OFFSETS_AT_A_TIME):
        count = min(_OFFSETS_AT_A_TIME, samples - first)
        table = np.frombuffer(shard.read(_U32 + _U32 * first, _U32 * (count + 1)), "<u4").tolist()
        for place, (begin, end) in enumerate(pairwise(table), first):
            name = str(place)
            if begin < before:
                raise shard.error("it overlaps what is before it: the table of offsets is broken", name)
            spans = _columns(shard, layout, begin, end, name)
            value = None if label is None else _label(shard, layout.kinds[label], spans[label], name)
            yield Member(name, spans[image][0], spans[image][1], value)
            before = end


def _columns(shard: Shard, layout: Layout, begin: int, end: int, name: str) -> list[tuple[int, int]]:
    """Offset and length of every column of a sample."""
    varying = layout.sizes.count(None)
    if end < begin + _U32 * varying:
        raise shard.error(
            f"its {end - begin} bytes cannot hold its columns: the table of offsets is broken, or the rows "
            "are in a "
            "form of Arrow beside it (LitData writes rows of plain values so)",
            name,
        )
    told = iter(struct.unpack(f"<{varying}I", shard.read(begin, _U32 * varying, name)))
    at, spans = begin + _U32 * varying, []
    for fixed in layout.sizes:
        size = next(told) if fixed is None else fixed
        spans.append((at, size))
        at += size
    if at != end:
        raise shard.error(f"its columns end at {at:,}, it ends at {end:,}: it is broken", name)
    shard.check(begin, end - begin, name)
    return spans


def _label(shard: Shard, kind: str, span: tuple[int, int], name: str) -> Label:
    offset, length = span
    if length > _TEXT_BYTES:
        raise shard.error(f"its label has {length:,} bytes", name)
    content = shard.read(offset, length, name)
    try:
        if kind in _NUMBERS:
            (value,) = np.frombuffer(content, _NUMBERS[kind]).tolist()
            return int(value) if kind == "bool" else value
        text = content.decode()
        if kind in _DIGITS:
            return int(text) if kind == "str_int" else float(text)
    except ValueError as error:
        raise shard.error(f"its label is no {kind}: {error}", name) from error
    return text


def _image_column(shard: Shard, layout: Layout, choices: Choices) -> int:
    """The column of the image: as named, else the only one of a kind that holds a file."""
    if choices.image_field is not None:
        return _column(shard, layout, choices.image_field, "--image-field")
    found = [place for place, kind in enumerate(layout.kinds) if kind.partition(":")[0] in _IMAGES]
    if len(found) == 1:
        return found[0]
    which = "several of its columns" if found else "none of its columns"
    raise shard.error(
        f"{which} may be an encoded image: name one by --image-field (raw pixels, such as pil, cannot be "
        "read); "
        f"{_shown(layout)}"
    )


def _label_column(shard: Shard, layout: Layout, choices: Choices) -> int | None:
    if choices.label_field is not None:
        place = _column(shard, layout, choices.label_field, "--label-field")
    else:
        place = next((layout.names.index(name) for name in _LABELS if name in layout.names), -1)
    if place < 0:
        return None
    if layout.kinds[place] not in _NUMBERS.keys() | _DIGITS | _TEXTS:
        raise shard.error(f"its column {layout.names[place]!r} is no number and no text; {_shown(layout)}")
    return place


def _column(shard: Shard, layout: Layout, name: str, option: str) -> int:
    if name not in layout.names:
        raise shard.error(f"it has no column {name!r} ({option}); {_shown(layout)}")
    return layout.names.index(name)


def _shown(layout: Layout) -> str:
    pairs = zip(layout.names, layout.kinds, strict=True)
    return f"its columns are {', '.join(f'{name} ({kind})' for name, kind in pairs)}"
