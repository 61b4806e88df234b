"""Parquet files with images in a column: Hugging Face's layout, or a column of bytes. Needs pyarrow.

A member is a row of a row group. Footers say where these are, so that of the file only labels are read.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from superdl.index.shard import Member, ShardFile
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from superdl.index.shard import Choices, Label, Shard

__all__ = ["parquet_members"]

_READ_BYTES = 2**30  # of a footer, or of the labels of a row group
_LABELS = ("label", "labels", "cls", "class")
_ROWS_AT_A_TIME = 8192
_BYTES = "BYTE_ARRAY"


def parquet_members(shard: Shard, choices: Choices) -> Iterator[Member]:
    """The rows of a Parquet file, each named by its column and its number in the file.

    Raises:
        ConfigError: pyarrow is not installed.
        ShardError: it is cut off or broken, has no column of images, or rows without one.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise ConfigError("reading Parquet needs pyarrow: pip install superdl[parquet]") from error
    try:
        with parquet.ParquetFile(ShardFile(shard, _READ_BYTES)) as file:
            yield from _rows(shard, file, choices)
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise shard.error(f"it is no Parquet, or broken: {error}") from error


def _rows(shard: Shard, file: Any, choices: Choices) -> Iterator[Member]:
    features = _features(file.schema_arrow)
    image = _image_column(shard, file, features, choices)
    place = [file.schema.column(one).path for one in range(len(file.schema))].index(image)
    label = _label_column(shard, file, choices) if choices.reads_labels else None
    classes = _classes(features.get(label)) if label and choices.labels != "numbers" else ()
    number = 0
    for group in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(group)
        counted = rows.column(place).statistics
        if counted is not None and counted.has_null_count and counted.null_count:
            raise shard.error(
                f"row group {group} has {counted.null_count:,} rows without an image's bytes (are they "
                "paths?)"
            )
        for row, value in enumerate(_labels(file, group, rows.num_rows, label)):
            if label is not None and (value is None or not isinstance(value, int | float | str)):
                raise shard.error(f"its label is a number or a text; not {str(value)[:60]!r}", str(number))
            yield Member(f"{image}:{number}", group, row, _named(value, classes), f"parquet:{image}")
            number += 1


def _labels(file: Any, group: int, rows: int, column: str | None) -> Iterator[Any]:
    """The labels of a row group, ``None`` each where none are read."""
    if column is None:
        yield from (None for _ in range(rows))
        return
    for batch in file.iter_batches(_ROWS_AT_A_TIME, row_groups=[group], columns=[column], use_threads=False):
        yield from batch.column(0).to_pylist()


def _named(value: Any, classes: tuple[str, ...]) -> Label | None:
    """A label as the name of its class, where it has one; -1 is Hugging Face's for none."""
    if isinstance(value, bool):
        return int(value)
    if not classes or not isinstance(value, int):
        return value  # type: ignore[no-any-return]
    return classes[value] if 0 <= value < len(classes) else None


def _features(schema: Any) -> dict[str, Any]:
    """What Hugging Face's ``datasets`` has written of the columns; empty where it did not."""
    try:
        said = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = said["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return features if isinstance(features, dict) else {}


def _classes(feature: Any) -> tuple[str, ...]:
    names = (
        feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None
    )
    return tuple(map(str, names)) if isinstance(names, list) else ()


def _image_column(shard: Shard, file: Any, features: dict[str, Any], choices: Choices) -> str:
    """The path of the image's bytes: as named, as Hugging Face says, or the only column of bytes."""
    schema = file.schema
    columns = [schema.column(place) for place in range(len(schema))]
    binary = [
        one.path
        for one in columns
        if one.physical_type == _BYTES and one.logical_type.type == "NONE" and not one.max_repetition_level
    ]
    named = [choices.image_field] if choices.image_field else []
    named = named or [
        name for name, one in features.items() if isinstance(one, dict) and one.get("_type") == "Image"
    ]
    found = [path for path in binary if not named or path in named or path.removesuffix(".bytes") in named]
    if len(found) == 1:
        return str(found[0])
    which = "several of its columns hold bytes" if found else "it has no column of an image's bytes"
    paths = ", ".join(f"{one.path} ({one.physical_type})" for one in columns)
    raise shard.error(f"{which}: name one by --image-field; its columns are {paths}"[:2000])


def _label_column(shard: Shard, file: Any, choices: Choices) -> str:
    names = file.schema_arrow.names
    if choices.label_field is None and not any(name in names for name in _LABELS):
        raise shard.error(
            f"it has no column of labels ({', '.join(_LABELS)}): name one by --label-field, or --labels "
            f"none; its columns are {', '.join(names)}"[:2000]
        )
    if choices.label_field is None:
        return next(name for name in _LABELS if name in names)
    if choices.label_field not in names:
        raise shard.error(
            f"it has no column {choices.label_field!r}; its columns are {', '.join(names)}"[:2000]
        )
    return choices.label_field
