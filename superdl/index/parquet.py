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
    from collections.abc import Iterator

    from superdl.index.choices import Choices
    from superdl.index.shard import Label, Shard

__all__ = ["parquet_members"]

_READ_BYTES = 2**30  # of a footer, or of the labels of a row group
_LABELS = ("label", "labels", "cls", "class")
_ROWS_AT_A_TIME = 8192
_MESSAGE_LENGTH = 2000


def parquet_members(shard: Shard, choices: Choices) -> Iterator[Member]:
    """The rows of a Parquet file, each named by its column and its number in the file.

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
    features = _features(file.schema_arrow)
    image, place = _image_column(shard, file, features, choices)
    label = _label_column(shard, file, choices) if choices.reads_labels else None
    feature = features.get(label, {})
    names = feature.get("names") if feature.get("_type") == "ClassLabel" else None
    classes = names if isinstance(names, list) and choices.labels != "numbers" else []
    number = 0
    for group in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(group)
        counted = rows.column(place).statistics
        if counted is not None and counted.has_null_count and counted.null_count:
            raise shard.error(
                f"row group {group} has {counted.null_count:,} rows without an image's bytes (are they "
                "paths?)"
            )
        labels = repeat(None, rows.num_rows) if label is None else _labels(file, group, label)
        for row, value in enumerate(labels):
            if label is not None and (value is None or not isinstance(value, int | float | str)):
                raise shard.error(f"its label is a number or a text; not {str(value)[:60]!r}", str(number))
            yield Member(f"{image}:{number}", group, row, _named(value, classes), f"parquet:{image}")
            number += 1


def _labels(file: Any, group: int, column: str) -> Iterator[Any]:
    for batch in file.iter_batches(_ROWS_AT_A_TIME, row_groups=[group], columns=[column], use_threads=False):
        yield from batch.column(0).to_pylist()


def _named(value: Any, classes: list[Any]) -> Label | None:
    """A label as the name of its class, where it has one; -1 is Hugging Face's for none."""
    if isinstance(value, bool):
        return int(value)
    if not classes or not isinstance(value, int):
        return value  # type: ignore[no-any-return]
    return str(classes[value]) if 0 <= value < len(classes) else None


def _features(schema: Any) -> dict[str | None, dict[str, Any]]:
    """Hugging Face's description of columns, by name; empty where ``datasets`` did not write the file."""
    try:
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        return {name: feature for name, feature in features.items() if isinstance(feature, dict)}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _image_column(
    shard: Shard, file: Any, features: dict[str | None, dict[str, Any]], choices: Choices
) -> tuple[str, int]:
    """Path and place of the image's bytes: as named, as Hugging Face says, or the only column of bytes."""
    columns = [file.schema.column(place) for place in range(len(file.schema))]
    named: set[str | None] = {choices.image_field} - {None}
    named = named or {name for name, feature in features.items() if feature.get("_type") == "Image"}
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
    raise shard.error(f"{which}: name one by --image-field; its columns are {paths}"[:_MESSAGE_LENGTH])


def _label_column(shard: Shard, file: Any, choices: Choices) -> str:
    names = file.schema_arrow.names
    usual = (choices.label_field,) if choices.label_field else _LABELS
    if label := next((name for name in usual if name in names), None):
        return label
    none = repr(choices.label_field) if choices.label_field else f"of labels ({', '.join(_LABELS)})"
    raise shard.error(
        f"it has no column {none}: name one by --label-field, or --labels none; its columns are "
        f"{', '.join(names)}"[:_MESSAGE_LENGTH]
    )
