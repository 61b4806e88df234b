"""Index files that lie beside shards: those of MDS (MosaicML Streaming), LitData, DALI and WebDataset.

The ``index.json`` of MDS and LitData names shards and their columns. A shard begins with the number of
samples and where each begins and ends, in 32 bits; a sample with the sizes of its columns: in MDS of those
that have none by their kind, in LitData of all. An index of ``wds2idx`` tells where the members of a tar lie,
so that the tar need not be read. Those of ``tfrecord2idx`` and ``rec2idx``, and WebDataset's ``shardlist``,
tell no more than shards do.
"""

from __future__ import annotations

import json
import posixpath
import re
import struct
import tarfile
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from superdl.index.shard import Member

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from superdl.index.choices import Choices
    from superdl.index.shard import Label, Shard, ShardError, Shards

__all__ = [
    "INDEX_FILE",
    "Layout",
    "chunk_members",
    "end_of",
    "index_files",
    "index_of_tar",
    "indexed_members",
    "layouts_of",
    "stale",
]

INDEX_FILE = "index.json"

_INDEX_BYTES = 2**28
_TEXT_BYTES = 2**16
_U32 = 4
_OFFSETS_AT_A_TIME = 2**16
_LABELS = ("label", "cls", "class")
_IMAGES = frozenset({"jpeg", "png", "bytes", "image", "tifffile", "file"})
_KINDS = {"int": "<i", "uint": "<u", "float": "<f"}
_NUMBERS = {f"{kind}{bits}": f"{code}{bits // 8}" for kind, code in _KINDS.items() for bits in (16, 32, 64)}
_NUMBERS |= {"int8": "<i1", "uint8": "<u1", "int": "<i8", "float": "<f8", "bool": "?"}
_TEXTS = {"str": str, "text": str, "str_int": int, "str_float": float}

_BLOCK = tarfile.BLOCKSIZE
_BEGINNING_BYTES = 2**12
_MOST_SHARDLISTS = 16  # of more JSON files than that none is looked into
_WORDS = 4  # of a member: extension, offset, size, name
_SHORT = 100  # bytes of a name; longer ones stand in headers of their own
_NUMBER = re.compile(r"[0-9]{1,18}")


class Layout(NamedTuple):
    """An index's row of a shard: samples, bytes, and columns in their order.

    ``kinds`` are the format's names of how a column is written; ``sizes`` are the bytes of each column that
    has no size in the sample. ``format`` is ``mds`` or ``litdata``.
    """

    samples: int
    size: int
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    sizes: tuple[int | None, ...]
    format: str

    def column(self, shard: Shard, name: str, option: str) -> int:
        """The place of a column that the user names."""
        if name not in self.names:
            raise shard.error(f"it has no column {name!r} ({option}); {self.shown()}")
        return self.names.index(name)

    def shown(self) -> str:
        """The columns, for errors."""
        pairs = zip(self.names, self.kinds, strict=True)
        return f"its columns are {', '.join(f'{name} ({kind})' for name, kind in pairs)}"


# -------------------------------------------------------------------------------------------- MDS and LitData


def layouts_of(index: Shard) -> dict[str, Layout]:
    """Key of every shard that an ``index.json`` names, and its layout; none if it is no index of shards.

    ``ShardFormatError`` where these are compressed, encrypted, or of another version.
    """
    try:
        fields = json.loads(index.read(0, index.size)) if index.size <= _INDEX_BYTES else None
        if isinstance(fields, dict) and "shards" in fields:
            rows = [_of_mds(index, row) for row in fields["shards"]]
        elif isinstance(fields, dict) and "chunks" in fields and "config" in fields:
            rows = _of_litdata(index, fields["chunks"], fields["config"])
        else:
            return {}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise index.error(f"it is no index of MDS or LitData that can be read: {error!r}") from error
    folder = posixpath.dirname(index.key)
    return {posixpath.normpath(posixpath.join(folder, name)): layout for name, layout in rows}


def _of_mds(index: Shard, row: Mapping[str, Any]) -> tuple[str, Layout]:
    if (row["format"], row["version"]) != ("mds", 2):
        raise index.refusal(
            f"it names shards of the format {row['format']!r}, version {row['version']}; MDS 2 is read"
        )
    if row.get("compression") or row.get("zip_data"):
        raise index.refusal(
            f"its shards are compressed ({row['compression']}), so that no sample can be read alone: write "
            "them without compression= (JPEGs and PNGs lose hardly any room by it)"
        )
    names, kinds = tuple(row["column_names"]), tuple(row["column_encodings"])
    # 0 is as good as none: so does Streaming read it.
    sizes = tuple(int(size) if size else None for size in row["column_sizes"])
    if not len(names) == len(kinds) == len(sizes):
        raise ValueError("columns")
    file = row["raw_data"]
    layout = Layout(int(row["samples"]), int(file["bytes"]), names, kinds, sizes, "mds")
    return str(file["basename"]), layout


def _of_litdata(
    index: Shard, chunks: Sequence[Mapping[str, Any]], config: Mapping[str, Any]
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
    columns = _leaves(config.get("data_spec"), len(kinds)), kinds, (None,) * len(kinds)
    return [
        (
            str(chunk["filename"]),
            Layout(int(chunk["chunk_size"]), int(chunk["chunk_bytes"]), *columns, "litdata"),
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
    """The images in a shard, each named by its place in it."""
    if layout.size != shard.size:
        raise shard.error(
            f"it has {shard.size:,} bytes, {INDEX_FILE} says {layout.size:,}: it is cut off, or newer than "
            "its index"
        )
    (samples,) = struct.unpack("<I", shard.read(0, _U32))
    if samples != layout.samples:
        raise shard.error(f"it says that it has {samples:,} samples, {INDEX_FILE} says {layout.samples:,}")
    image = _image_column(shard, layout, choices)
    label = _label_column(shard, layout, choices) if choices.reads_labels else None
    before = 2 * _U32 + _U32 * samples
    for first in range(0, samples, _OFFSETS_AT_A_TIME):
        count = min(_OFFSETS_AT_A_TIME, samples - first)
        table = np.frombuffer(shard.read(_U32 + _U32 * first, _U32 * (count + 1)), "<u4").tolist()
        for place, (begin, end) in enumerate(pairwise(table), first):
            name = str(place)
            if begin < before:
                raise shard.error("it overlaps what is before it: the table of offsets is broken", name)
            spans = _columns(shard, layout, begin, end, name)
            value = None if label is None else _label(shard, layout.kinds[label], spans[label], name)
            yield Member(name, *spans[image], value)
            before = end


def _image_column(shard: Shard, layout: Layout, choices: Choices) -> int:
    """The column of the image: as named, else the only one of a kind that holds a file."""
    if choices.image_field is not None:
        return layout.column(shard, choices.image_field, "--image-field")
    places = [place for place, kind in enumerate(layout.kinds) if kind.partition(":")[0] in _IMAGES]
    if len(places) == 1:
        return places[0]
    raise shard.error(
        f"{'several' if places else 'none'} of its columns may be an encoded image: name one by "
        f"--image-field (raw pixels, such as pil, cannot be read); {layout.shown()}"
    )


def _label_column(shard: Shard, layout: Layout, choices: Choices) -> int | None:
    name = choices.label_field or next((name for name in _LABELS if name in layout.names), None)
    if name is None:
        return None
    place = layout.column(shard, name, "--label-field")
    if layout.kinds[place] not in _NUMBERS.keys() | _TEXTS.keys():
        raise shard.error(f"its column {name!r} is no number and no text; {layout.shown()}")
    return place


def _columns(shard: Shard, layout: Layout, begin: int, end: int, name: str) -> list[tuple[int, int]]:
    """Offset and length of every column of a sample."""
    varying = layout.sizes.count(None)
    at, spans = begin + _U32 * varying, []
    if end < at:
        raise shard.error(
            f"its {end - begin} bytes cannot hold its columns: the table of offsets is broken, or the rows "
            "are in a form of Arrow beside it (LitData writes rows of plain values so)",
            name,
        )
    own = iter(struct.unpack(f"<{varying}I", shard.read(begin, _U32 * varying, name)))
    for fixed in layout.sizes:
        size = next(own) if fixed is None else fixed
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
    value: Label
    try:
        if kind in _TEXTS:
            return _TEXTS[kind](content.decode())  # type: ignore[no-any-return]
        (value,) = np.frombuffer(content, _NUMBERS[kind]).tolist()
    except ValueError as error:
        raise shard.error(f"its label is no {kind}: {error}", name) from error
    return int(value) if isinstance(value, bool) else value


# --------------------------------------------------------------------------------------- DALI and WebDataset


def index_files(shards: Shards, keys: Collection[str]) -> set[str]:
    """Which of these objects are index files of DALI or WebDataset."""
    indexes = {key for key in keys if key.endswith((".idx", ".tar.index"))}
    lists = [key for key in keys if key.endswith(".json")]
    for key in lists if len(lists) <= _MOST_SHARDLISTS else ():
        file = shards.open(key)
        if b'"shardlist"' in file.read(0, min(file.size, _BEGINNING_BYTES)):
            indexes.add(key)
    return indexes


def index_of_tar(key: str, indexes: Collection[str]) -> str | None:
    """The key of a tar's index, if there is one: up to the tar's first dot, as ``wds2idx`` has it, up to its
    last, or after it.
    """
    folder, slash, base = key.rpartition("/")
    stems = f"{folder}{slash}{base[:1]}{base[1:].partition('.')[0]}", key.removesuffix(".tar"), key
    return next((f"{stem}.idx" for stem in stems if f"{stem}.idx" in indexes), None)


def indexed_members(shard: Shard, index: Shard) -> list[tarfile.TarInfo] | None:
    """The files in a tar as its index has them; ``None`` where it leaves their names to the tar.

    Of the tar the headers of some are looked at: the first, the last, one between, and those around the
    first gap that holds more than a header: ``wds2idx`` misreads what has headers of its own for a long name.
    """
    if index.size > _INDEX_BYTES:
        raise index.error(f"an index of {index.size:,} bytes; at most {_INDEX_BYTES:,} are read")
    version, _, rest = index.read(0, index.size).decode(errors="surrogateescape").partition(" ")
    count, *lines = rest.removesuffix("\n").split("\n")
    if version == "v1.1":  # it has none
        return None
    if version != "v1.2" or count.strip() != str(len(lines)) or not lines:
        raise index.error(f"it is no index of version v1.2 and {len(lines)} lines, as wds2idx writes it")
    infos = list(_files_in(index, lines, shard))
    if any("\\" in info.name for info in infos):  # as GNU tar tells names that are not ASCII
        return None
    places = range(1, len(infos))
    gap = next((at for at in places if infos[at].offset_data > end_of(infos[at - 1]) + _BLOCK), 0)
    # From the end on, for pieces that lie far apart are fetched alone.
    for place in sorted({0, max(0, gap - 1), gap, len(infos) // 2, len(infos) - 1}, reverse=True):
        if not _is_at_its_place(shard, infos[place]):
            raise stale(shard, index, infos[place].name)
    return infos


def end_of(info: tarfile.TarInfo) -> int:
    """Where the blocks of a file in a tar end."""
    return info.offset_data + -(-info.size // _BLOCK) * _BLOCK


def stale(shard: Shard, index: Shard, member: str) -> ShardError:
    """The error for an index that says otherwise than its tar, of a member."""
    return shard.error(
        f"the index {index.key} says otherwise: it is older than the tar, of another one, or wds2idx misread "
        "the tar: write it again, or delete it and the tar itself is read",
        member,
    )


def _files_in(index: Shard, lines: Sequence[str], shard: Shard) -> Iterator[tarfile.TarInfo]:
    end = 0
    for number, line in enumerate(lines, 2):
        words = line.split(" ")
        if len(words) % _WORDS:
            raise index.error(f"line {number}: a file is extension, offset, size and name, without spaces")
        for extension, offset, size, name in zip(*[iter(words)] * _WORDS, strict=True):
            if not (_NUMBER.fullmatch(offset) and _NUMBER.fullmatch(size) and name.endswith(extension)):
                wrong = f"{extension} {offset} {size} {name}"
                raise index.error(f"line {number}: {wrong[:200]!r} is no extension, offset, size and name")
            info = tarfile.TarInfo(name)
            info.offset_data, info.size = int(offset), int(size)
            between = end + _BLOCK <= info.offset_data <= shard.size - info.size
            if info.offset_data % _BLOCK or not between:
                raise stale(shard, index, name)
            end = end_of(info)
            yield info


def _is_at_its_place(shard: Shard, info: tarfile.TarInfo) -> bool:
    """Whether the header before its bytes is this file's."""
    block = shard.read(info.offset_data - _BLOCK, _BLOCK, info.name)
    try:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except (tarfile.TarError, ValueError):
        return False
    named = header.name == info.name or len(info.name) >= _SHORT or not info.name.isascii()
    return named and header.isreg() and header.size == info.size
