"""Parquet files with images in a column: Hugging Face's layout, or a column of bytes. Needs pyarrow.

A member is a row of a row group. Footers say where these are, so that of the file only labels are read.
"""

from __future__ import annotations

import json
from itertools import repeat
from typing import TYPE_CHECKING, Any

from superdl.index.shard import Member, ShardFile
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from superdl.index.choices import Choices
    from superdl.index.shard import Shard

__all__ = ["parquet_members"]

_READ_BYTES = 2**30  # of a footer, or of the labels of a row group
_LABELS = ("label", "labels", "cls", "class")
_ROWS_AT_A_TIME = 8192
_SHOWN = 2000  # characters of names of columns


def parquet_members(shard: Shard, choices: Choices) -> Iterator[Member]:
    """Yield the rows of a Parquet file, each named by its column and its number in the file.

    Raises:
        ConfigError: pyarrow is not installed.
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
    try:  # Hugging Face's description of columns, if datasets wrote the file
        described = json.loads((file.schema_arrow.metadata or {}).get(b"huggingface", b"{}"))["info"][
            "features"
        ]
        features = {name: feature for name, feature in described.items() if isinstance(feature, dict)}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        features = {}
    image, place = _image_column(shard, file, features, choices)
    label = _label_column(shard, file, choices) if choices.reads_labels else ""
    feature = features.get(label, {})
    names = feature.get("names") if feature.get("_type") == "ClassLabel" else None
    classes = names if isinstance(names, list) and choices.labels != "numbers" else []
    number = 0
    for group in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(group)
        counted = rows.column(place).statistics
        if counted is not None and counted.has_null_count and counted.null_count:
            raise shard.error(f"row group {group} has {counted.null_count:,} rows without an image's bytes")
        for row, value in enumerate(_labels(file, group, label) if label else repeat(None, rows.num_rows)):
            if label and not isinstance(value, int | float | str):
                raise shard.error(f"its label is a number or a text; not {str(value)[:60]!r}", str(number))
            named = int(value) if isinstance(value, bool) else value
            if classes and type(value) is int:  # -1 is Hugging Face's for none
                named = str(classes[value]) if 0 <= value < len(classes) else None
            yield Member(f"{image}:{number}", group, row, named, f"parquet:{image}")
            number += 1


def _labels(file: Any, group: int, column: str) -> Iterator[Any]:
    for batch in file.iter_batches(_ROWS_AT_A_TIME, row_groups=[group], columns=[column], use_threads=False):
        yield from batch.column(0).to_pylist()


def _image_column(
    shard: Shard, file: Any, features: Mapping[str, Mapping[str, Any]], choices: Choices
) -> tuple[str, int]:
    """Return path and place of the image's bytes: as named, as described, or the only column of bytes."""
    columns = [file.schema.column(place) for place in range(len(file.schema))]
    images = {name for name, feature in features.items() if feature.get("_type") == "Image"}
    named = {choices.image_field} if choices.image_field else images
    places = [
        place
        for place, column in enumerate(columns)
        if column.physical_type == "BYTE_ARRAY"
        and column.logical_type.type == "NONE"
        and not column.max_repetition_level
        and (not named or named & {column.path, column.path.removesuffix(".bytes")})
    ]
    if len(places) == 1:
        return str(columns[places[0]].path), places[0]
    which = "several of its columns hold bytes" if places else "it has no column of an image's bytes"
    paths = ", ".join(f"{column.path} ({column.physical_type})" for column in columns)
    raise shard.error(f"{which}: name one by --image-field; its columns are {paths[:_SHOWN]}")


def _label_column(shard: Shard, file: Any, choices: Choices) -> str:
    names: list[str] = file.schema_arrow.names
    usual = (choices.label_field,) if choices.label_field else _LABELS
    if label := next((name for name in usual if name in names), None):
        return label
    why = f"it has no column {' or '.join(usual)}: name the labels' by --label-field, or --labels none"
    raise shard.error(f"{why}; its columns are {', '.join(names)[:_SHOWN]}")
