"""A catalog as a memory-mapped Arrow IPC file, so that only the requested samples are read.

The file contains one record batch with a row for each sample. Any Arrow reader can open it:

| column | type |
|---|---|
| ``key``, ``version`` | large binary; dictionary-encoded if samples are members of objects |
| ``member``, ``offset``, ``length``, ``encoding`` | large binary and unsigned integers; only for members |
| ``label`` | fixed-size binary: a label as stored by numpy, or its fixed-size part |
| ``label.NAME`` | large list of fixed-size binary: a list whose length varies by sample |
| ``FIELD.key`` and so on | the same columns for an additional field |

The schema's metadata contains the catalog's properties (bucket, classes, warnings, dtypes, fingerprint) as
JSON.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from superdl.coordinator.catalog.catalog import Catalog
from superdl.coordinator.catalog.members import Field, Members
from superdl.coordinator.catalog.strings import PackedStrings
from superdl.super_wire.ids import MAIN_FIELD
from superdl.super_wire.labels import RaggedLabels, label_dtype_of, label_fields_of

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from superdl.super_wire.labels import Labels

_ABOUT = b"superdl"
# Version of the format. Files of other versions are refused.
VERSION = 1
_TEXTS = ("bucket", "alias", "prefix", "label_dtype", "label_bytes")


def write_catalog(catalog: Catalog, stream: BinaryIO) -> None:
    """Write a catalog to a writable binary stream."""
    import pyarrow as pa

    columns, facts = dict[str, Any](), {name: getattr(catalog, name) for name in _TEXTS}
    facts |= {"version": VERSION, "fingerprint": catalog.fingerprint.hex(), "dtypes": {}, "encodings": {}}
    facts |= {"classes": catalog.classes, "warnings": catalog.warnings}
    facts["fields"] = [field.name for field in catalog.fields]
    for part in catalog.parts(facts["fields"]):
        columns |= _part_columns(part)
        facts["encodings"][part.name] = part.members.row_encodings if part.members else None
    rows, lists = _rows_and_lists(catalog.labels)
    columns["label"] = _fixed(rows)
    facts["dtypes"] = {name: items.dtype.str for name, items in lists.items()}
    # Plain labels have a narrowed dtype. That of structured labels is in label_dtype.
    facts["dtypes"] |= {} if lists or rows.dtype.names else {"": rows.dtype.str}
    for name, items in lists.items():
        # In the fixed part, a ragged list is represented by its length.
        ends = np.cumsum(rows[name] if name else rows, dtype=np.int64)
        offsets = pa.array(np.concatenate([np.zeros(1, dtype=np.int64), ends]))
        columns[f"label.{name}"] = pa.LargeListArray.from_arrays(offsets, _fixed(items))
    batch = pa.RecordBatch.from_pydict(columns, metadata={_ABOUT: json.dumps(facts)})
    with pa.ipc.new_file(stream, batch.schema) as writer:
        writer.write_batch(batch)


def map_catalog(path: Path) -> Catalog:
    """Memory-map a catalog file. Raises ``OSError`` if it is unreadable, ``ValueError`` if it is invalid."""
    import pyarrow as pa

    with pa.memory_map(str(path)) as source:
        # Columns keep the memory mapped after the file is closed.
        batch = pa.ipc.open_file(source).get_batch(0)
    facts = json.loads(batch.schema.metadata[_ABOUT])
    if facts["version"] != VERSION:
        raise ValueError(
            f"the catalog has version {facts['version']}, but this version of SUPER reads version {VERSION}"
        )
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    parts = [_part_of(name, columns, facts["encodings"][name]) for name in (MAIN_FIELD, *facts["fields"])]
    return Catalog(
        keys=parts[0].keys,
        versions=parts[0].versions,
        members=parts[0].members,
        fields=tuple(parts[1:]),
        labels=_labels_of(columns, facts["label_dtype"], facts["dtypes"]),
        classes=tuple(facts["classes"]),
        warnings=tuple(facts["warnings"]),
        fingerprint=bytes.fromhex(facts["fingerprint"]),
        **{name: facts[name] for name in _TEXTS},
    )


def _part_columns(part: Field) -> dict[str, Any]:
    import pyarrow as pa

    columns = {"key": part.keys.array, "version": part.versions.array}
    if (members := part.members) is not None:
        columns["member"] = members.names.array
        columns |= {"offset": pa.array(members.offsets), "length": pa.array(members.lengths)}
        if members.encodings.size:
            columns["encoding"] = pa.array(members.encodings)
    return {_column(part.name, name): column for name, column in columns.items()}


def _part_of(name: str, columns: dict[str, Any], row_encodings: list[str] | None) -> Field:
    """Build a part from its columns. ``row_encodings`` is ``None`` if the part has no members."""
    keys, versions = (PackedStrings(columns[_column(name, short)]) for short in ("key", "version"))
    if row_encodings is None:
        return Field(name, keys, versions, None)
    names = PackedStrings(columns[_column(name, "member")])
    offsets, lengths = (columns[_column(name, short)].to_numpy() for short in ("offset", "length"))
    encodings = columns.get(_column(name, "encoding"))
    encodings = np.empty(0, dtype=np.uint8) if encodings is None else encodings.to_numpy()
    members = Members(keys.array.indices.to_numpy(), names, offsets, lengths, encodings, tuple(row_encodings))
    return Field(name, keys, versions, members)


def _column(part: str, name: str) -> str:
    return name if part == MAIN_FIELD else f"{part}.{name}"


def _fixed(rows: NDArray[Any]) -> Any:
    import pyarrow as pa

    row_bytes = rows.dtype.itemsize * math.prod(rows.shape[1:])
    buffers = [None, pa.py_buffer(np.ascontiguousarray(rows))]
    return pa.Array.from_buffers(pa.binary(row_bytes), len(rows), buffers)


def _array_of(column: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.frombuffer(column.buffers()[-1], dtype, len(column)) if len(column) else np.empty(0, dtype)


def _rows_and_lists(labels: Labels) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
    return (labels.rows, labels.values) if isinstance(labels, RaggedLabels) else (labels, {})


def _labels_of(columns: dict[str, Any], text: str, dtypes: dict[str, str]) -> Labels:
    fields, of_row = label_fields_of(text), label_dtype_of(text)
    held = {name: np.dtype((dtype, fields[name].dtype.shape)) for name, dtype in dtypes.items()}
    varies = any(field.varies for field in fields.values())
    rows = _array_of(columns["label"], of_row if varies or "" not in held else held[""])
    if not varies:
        return rows
    items = {name: _array_of(columns[f"label.{name}"].values, dtype) for name, dtype in held.items()}
    return RaggedLabels(rows, items)
