"""Shards of records: MDS (MosaicML Streaming), LitData, TFRecord and Parquet."""

from __future__ import annotations

import json
import posixpath
import struct
from functools import cache, partial
from itertools import chain, pairwise, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from superdl.index.loose import number_or_text
from superdl.index.shard import Member, ShardFile

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from superdl.index.choices import Choices
    from superdl.index.shard import Label, Shard

    Columns = Mapping[str, tuple[str, int | None]]  # by name: kind, and size if all samples share it

INDEX_FILE = "index.json"

_INDEX_BYTES = 2**28
_TEXT_BYTES = 2**16
_U32 = 4
_LABELS = ("label", "cls", "class")
_IMAGES = frozenset({"jpeg", "png", "bytes", "image", "tifffile", "file"})
_SIZES = (2, 4, 8)
_NUMBERS = {"int8": "<i1", "uint8": "<u1", "int": "<i8", "float": "<f8", "bool": "?"}
_NUMBERS |= {f"{kind}{8 * size}": f"<{kind[0]}{size}" for kind in ("int", "uint", "float") for size in _SIZES}
_TEXTS = {"str": str, "text": str, "str_int": int, "str_float": float}
_ARROW = b"ARROW1"

_FRAME = struct.Struct("<QI")
_FOOT_BYTES = 4
_RECORD_BYTES = 2**29
# Names used by ImageNet's scripts, and by TensorFlow Datasets.
_RECORD_IMAGES = ("image/encoded", "image")
_RECORD_LABELS = ("image/class/label", "label")
# The messages in a tf.train.Example, with their fields in the order of their numbers.
_EXAMPLE = {
    "Bytes": {"value": "TYPE_BYTES"},
    "Floats": {"value": "TYPE_FLOAT"},
    "Integers": {"value": "TYPE_INT64"},
    "Feature": {"bytes": "Bytes", "floats": "Floats", "integers": "Integers"},
    "Entry": {"key": "TYPE_BYTES", "value": "Feature"},
    "Features": {"feature": "Entry"},
    "Example": {"features": "Features"},
}

_READ_BYTES = 2**30  # of a footer, or of the labels of a row group
_COLUMN_LABELS = ("label", "labels", "cls", "class")
_ROWS_AT_A_TIME = 8192
_SHOWN = 2000  # characters of names of features and columns


def _first_present(names: Collection[str], chosen: str | None, usual: Sequence[str]) -> str | None:
    """Return the chosen name if it is present or, without a choice, the first usual name that is."""
    return next((name for name in ((chosen,) if chosen else usual) if name in names), None)


class Layout(NamedTuple):
    """A shard as its index describes it. ``format`` is ``mds`` or ``litdata``."""

    format: str
    samples: int
    size: int
    columns: Columns


def layouts_of(index: Shard) -> dict[str, Layout]:
    """Return the layout of each shard in an ``index.json``, by key, or none if the format is unknown."""
    try:
        fields = json.loads(index.whole(_INDEX_BYTES))
        if isinstance(fields, dict) and "shards" in fields:
            rows = [_of_mds(index, row) for row in fields["shards"]]
        elif isinstance(fields, dict) and "chunks" in fields and "config" in fields:
            rows = _of_litdata(index, fields["chunks"], fields["config"])
        else:
            return {}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise index.error(f"not an index of MDS or LitData: {error!r}") from error
    folder = posixpath.dirname(index.key)
    return {posixpath.normpath(posixpath.join(folder, name)): layout for name, layout in rows}


def _of_mds(index: Shard, row: Mapping[str, Any]) -> tuple[str, Layout]:
    if (row["format"], row["version"]) != ("mds", 2):
        raise index.error(
            f"its shards are {row['format']!r}, version {row['version']}, but only MDS 2 can be read"
        )
    if row.get("compression") or row.get("zip_data"):
        why = f"its shards are compressed ({row['compression']}), so samples cannot be read individually"
        raise index.error(f"{why}: write them without compression=, which saves nothing on JPEGs and PNGs")
    # 0 means none, as in Streaming.
    sizes = [int(size) if size else None for size in row["column_sizes"]]
    kinds = zip(map(str, row["column_encodings"]), sizes, strict=True)
    columns = dict(zip(map(str, row["column_names"]), kinds, strict=True))
    file = row["raw_data"]
    return str(file["basename"]), Layout("mds", int(row["samples"]), int(file["bytes"]), columns)


def _of_litdata(index: Shard, chunks: Any, config: Mapping[str, Any]) -> list[tuple[str, Layout]]:
    for setting in ("compression", "ipc_compression", "encryption"):
        if config.get(setting):
            raise index.error(
                f"its chunks have {setting} {config[setting]!r}: write them with {setting}=None"
            )
    if config.get("item_loader") not in {None, "PyTreeLoader"}:
        raise index.error(
            f"its chunks are for {config['item_loader']}, but only those for PyTreeLoader can be read"
        )
    # The names of a sample's leaves are the keys of a flat dict, else their positions.
    tree = json.loads(config["data_spec"])[1] if config.get("data_spec") else {}
    flat = all(child.get("type") is None for child in tree.get("children_spec", ()))
    keys = tree["context"] if flat and str(tree.get("type")).endswith("dict") else ()
    keys = json.loads(keys) if isinstance(keys, str) else keys
    kinds = config["data_format"]
    names = keys if len(keys) == len(kinds) else range(len(kinds))
    columns = {str(name): (str(kind), None) for name, kind in zip(names, kinds, strict=True)}
    sizes = ((chunk["filename"], int(chunk["chunk_size"]), int(chunk["chunk_bytes"])) for chunk in chunks)
    return [(str(name), Layout("litdata", samples, size, columns)) for name, samples, size in sizes]


def chunk_members(shard: Shard, choices: Choices, layout: Layout) -> Iterator[Member]:
    """Yield the images in a shard of MDS or LitData, named by their position in the shard."""
    # A shard begins with the number of samples and their offsets, in 32 bits.
    (samples,) = struct.unpack("<I", shard.read(0, _U32))
    if (shard.size, samples) != (layout.size, layout.samples):
        actual = f"has {shard.size:,} bytes and {samples:,} samples"
        stated = f"{INDEX_FILE} states {layout.size:,} and {layout.samples:,}"
        raise shard.error(f"{actual}, but {stated}: truncated, or newer than its index")
    image, label = _chunk_columns(shard, layout.columns, choices)
    before = 2 * _U32 + _U32 * samples
    if shard.read(before, min(len(_ARROW), shard.size - before)) == _ARROW:
        why = "its samples are rows of Arrow, as LitData writes bytes and numbers"
        raise shard.error(f"{why}; write PIL images instead, so they are stored as JPEG or PNG")
    table = np.frombuffer(shard.read(_U32, _U32 * (samples + 1)), "<u4").tolist()
    for number, (begin, end) in enumerate(pairwise(table)):
        name = str(number)
        if begin < before:
            raise shard.error("overlaps the data before it: the offset table is corrupt", name)
        spans = _spans(shard, layout.columns, begin, end, name)
        value = _chunk_label(shard, layout.columns[label][0], *spans[label], name) if label else None
        yield Member(name, *spans[image], value)
        before = end


def _chunk_columns(shard: Shard, columns: Columns, choices: Choices) -> tuple[str, str | None]:
    """Return the columns of the image and the label, as chosen or else recognised by kind and name."""
    shown = f"its columns are {', '.join(f'{name} ({kind})' for name, (kind, _) in columns.items())}"
    images = [name for name, (kind, _) in columns.items() if kind.partition(":")[0] in _IMAGES]
    images = [choices.image_field] if choices.image_field else images
    if len(images) != 1:
        why = f"{'several' if images else 'none'} of its columns may be an encoded image"
        raise shard.error(f"{why} (raw pixels, such as pil, are not): choose one with --image-field; {shown}")
    label = choices.label_field if choices.reads_labels else None
    for name in (images[0], label or images[0]):
        if name not in columns:
            raise shard.error(f"no column {name!r}; {shown}")
    return images[0], label or (_first_present(columns, None, _LABELS) if choices.reads_labels else None)


def _spans(shard: Shard, columns: Columns, begin: int, end: int, name: str) -> dict[str, tuple[int, int]]:
    """Return the offset and length of each column of a sample."""
    # A sample begins with the sizes of its columns: in MDS of those that vary, in LitData of all.
    varying = sum(size is None for _, size in columns.values())
    offset, spans, lengths = begin + _U32 * varying, {}, iter(())
    if offset <= end:
        lengths = iter(struct.unpack(f"<{varying}I", shard.read(begin, _U32 * varying, name)))
    for column, (_, size) in columns.items():
        spans[column] = offset, next(lengths, 0) if size is None else size
        offset += spans[column][1]
    if offset != end:
        why = f"its columns end at {offset:,}, but it ends at {end:,}: the offset table is corrupt"
        raise shard.error(why, name)
    shard.check(begin, end - begin, name)
    return spans


def _chunk_label(shard: Shard, kind: str, offset: int, length: int, name: str) -> Label:
    if length > _TEXT_BYTES:
        raise shard.error(f"label is too long ({length:,} bytes)", name)
    content = shard.read(offset, length, name)
    try:
        if kind in _TEXTS:
            return _TEXTS[kind](content.decode())  # type: ignore[no-any-return]
        (value,) = np.frombuffer(content, _NUMBERS[kind]).tolist()
    except (ValueError, KeyError) as error:
        raise shard.error(f"the label is not a number or string of type {kind}: {error}", name) from error
    return int(value) if isinstance(value, bool) else value


def tfrecord_members(shard: Shard, choices: Choices) -> Iterator[Member]:
    """Yield the images in a TFRecord file, named by record number."""
    shard.refuse_compressed()
    example_type = _example_type()
    at, number = 0, 0
    while at < shard.size:
        name = str(number)
        length, _ = _FRAME.unpack(shard.read(at, _FRAME.size, name))
        if length > _RECORD_BYTES:
            why = f"not a TFRecord, or corrupt: a length of {length:,} bytes exceeds {_RECORD_BYTES:,}"
            raise shard.error(why, name)
        begin = at + _FRAME.size
        shard.check(begin, length + _FOOT_BYTES, name)
        record = shard.read(begin, length, name)
        try:
            feature_entries = (
                entry for features in example_type.FromString(record).features for entry in features.feature
            )
            entries = {b"".join(entry.key).decode(): entry for entry in feature_entries}
            image, label = _image_and_label(entries, choices)
        except (DecodeError, ValueError) as error:
            raise shard.error(f"not a tf.train.Example with image and label: {error}", name) from error
        member = f"{choices.image_field}:{name}" if choices.image_field else name
        (content,) = _values_of(image)
        written = image.SerializeToString()  # which ends with the image
        end = record.find(written) + len(written)
        # Other encoders may write the entry differently: then search for the image itself.
        start = end - len(content) if written in record else record.find(content)
        yield Member(member, begin + start, len(content), label)
        at, number = begin + length + _FOOT_BYTES, number + 1


def _values_of(entry: Any) -> list[Any]:
    lists = (values for feature in entry.value for _, repeated in feature.ListFields() for values in repeated)
    return [value for values in lists for value in values.value]


def _image_and_label(entries: Mapping[str, Any], choices: Choices) -> tuple[Any, Label | None]:
    """Return the image's entry and the label; raise ``ValueError`` unless there is exactly one image."""
    image = _first_present(entries, choices.image_field, _RECORD_IMAGES)
    label = _first_present(entries, choices.label_field, _RECORD_LABELS) if choices.reads_labels else None
    if image is None or [type(value) for value in _values_of(entries[image])] != [bytes]:
        names = choices.image_field or " or ".join(_RECORD_IMAGES)
        shown = f"its features are {', '.join(sorted(entries))[:_SHOWN]}"
        raise ValueError(f"no feature {names} contains exactly one bytes value (--image-field); {shown}")
    if label is None:
        return entries[image], None
    (value,) = _values_of(entries[label])
    return entries[image], value.decode() if isinstance(value, bytes) else value


@cache
def _example_type() -> Any:
    """Return protobuf's class for ``tf.train.Example``, in which any field may be repeated."""
    file = FileDescriptorProto(name="example.proto", package="example")
    for message, fields in _EXAMPLE.items():
        described = file.message_type.add(name=message)
        for number, (name, kind) in enumerate(fields.items(), 1):
            field = described.field.add(name=name, number=number, label=FieldDescriptorProto.LABEL_REPEATED)
            if kind in _EXAMPLE:
                field.type_name = f".example.{kind}"
            else:
                field.type = FieldDescriptorProto.Type.Value(kind)
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName("example.Example"))


def parquet_members(shard: Shard, choices: Choices) -> Iterator[Member]:
    """Yield the rows of a Parquet file, named by column and row number."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        # Only footers and labels are read.
        with parquet.ParquetFile(ShardFile(shard, _READ_BYTES), pre_buffer=False) as file:
            yield from _parquet_rows(shard, file, choices)
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise shard.error(f"not a valid Parquet file: {error}") from error


def _parquet_rows(shard: Shard, file: Any, choices: Choices) -> Iterator[Member]:
    columns: list[str] = file.schema_arrow.names
    try:  # Hugging Face's description of columns, if datasets wrote the file
        described = json.loads(file.schema_arrow.metadata[b"huggingface"])["info"]["features"]
        features = {name: feature for name, feature in described.items() if isinstance(feature, dict)}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        features = {}
    image, image_at = _parquet_image(shard, file, features, choices)
    label = _first_present(columns, choices.label_field, _COLUMN_LABELS) if choices.reads_labels else ""
    if label is None:
        why = f"no column {choices.label_field or ' or '.join(_COLUMN_LABELS)}"
        remedy = "set the label column with --label-field, or use --labels none"
        raise shard.error(f"{why}: {remedy}; its columns are {', '.join(columns)[:_SHOWN]}")
    feature = features.get(label, {})
    names = feature.get("names") if feature.get("_type") == "ClassLabel" else None
    classes = names if isinstance(names, list) and choices.labels != "numbers" else []
    number = 0
    for group in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(group)
        statistics = rows.column(image_at).statistics
        if statistics is not None and statistics.has_null_count and statistics.null_count:
            raise shard.error(
                f"row group {group} has {statistics.null_count:,} rows without an image's bytes"
            )
        labels: Iterable[Any] = repeat(None, rows.num_rows)
        if label:
            batches = file.iter_batches(_ROWS_AT_A_TIME, [group], [label], use_threads=False)
            labels = chain.from_iterable(batch.column(0).to_pylist() for batch in batches)
        for row, value in enumerate(labels):
            row_label = number_or_text(value, partial(shard.error, member=str(number))) if label else None
            if classes and type(value) is int:  # -1 is Hugging Face's value for none
                row_label = str(classes[value]) if 0 <= value < len(classes) else None
            yield Member(f"{image}:{number}", group, row, row_label, f"parquet:{image}")
            number += 1


def _parquet_image(
    shard: Shard, file: Any, features: Mapping[str, Mapping[str, Any]], choices: Choices
) -> tuple[str, int]:
    """Return the path and index of the image column: as chosen or described, or else the only candidate."""
    columns = [file.schema.column(index) for index in range(len(file.schema))]
    images = {name for name, feature in features.items() if feature.get("_type") == "Image"}
    chosen_paths = {choices.image_field} if choices.image_field else images
    candidates = [
        index
        for index, column in enumerate(columns)
        if column.physical_type == "BYTE_ARRAY"
        and column.logical_type.type == "NONE"
        and not column.max_repetition_level
        and (not chosen_paths or chosen_paths & {column.path, column.path.removesuffix(".bytes")})
    ]
    if len(candidates) == 1:
        return str(columns[candidates[0]].path), candidates[0]
    problem = (
        "several of its columns contain bytes"
        if candidates
        else "none of its columns contains an image's bytes"
    )
    paths = ", ".join(f"{column.path} ({column.physical_type})" for column in columns)
    raise shard.error(f"{problem}: choose one with --image-field; its columns are {paths[:_SHOWN]}")
