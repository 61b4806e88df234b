"""Fuzzers of what users and coordinators hand in as data: key lists, checkpoints, pages and label dtypes.

Each makes one input of the chance that it is given and tries it: it passes if the input is taken as it should
be, or refused by an error of SUPER's own; ``AssertionError`` says what came instead.
"""

from __future__ import annotations

import csv
import io
import json
import math
import tempfile
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from google.protobuf.message import DecodeError
from pyarrow import parquet

from superdl.coordinator.catalog.catalog import Catalog
from superdl.coordinator.catalog.key_list import read_key_list
from superdl.coordinator.catalog.listing import Tally
from superdl.sampler.checkpoint import Checkpoint
from superdl.sampler.prefetch import PlanPosition, planned_batch
from superdl.sampler.session import JobSpec
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.batch_ref import DatasetBinding
from superdl.super_wire.errors import ConfigError, SourceError
from superdl.super_wire.label_dtype import LABEL_KINDS, MAX_LABEL_BYTES, label_dtype_of

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

__all__ = ["FUZZERS"]

_TEXTS = [
    "",
    " ",
    "a.jpg",
    "cat/1.jpg",
    "../x",
    "/",
    "a//b",
    ".",
    "\0",
    "\ud800",
    "猫",
    "é" * 3000,
    "\x1b[2J",
]
_TEXTS += ["nan", "-inf", "1e400", "0x1f", "१२", "+7", "9" * 70, "label.x", "key", "version", '"', "\r", "\n"]
_NUMBERS = [0, 1, -1, 7, 255, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**30, 10**5000]
_NUMBERS += [0.5, -0.0, 1e308, math.inf, -math.inf, math.nan]


def _value(chance: random.Random, depth: int = 0) -> Any:
    """Anything that JSON or a pickle can hold."""
    kind = chance.randrange(8 if depth < 3 else 4)
    if kind < 2:
        return chance.choice(_TEXTS)
    if kind < 4:
        return chance.choice([*_NUMBERS, None, True, False, b"bytes"])
    if kind < 6:
        return [_value(chance, depth + 1) for _ in range(chance.randrange(4))]
    if kind == 6:
        return {chance.choice(_TEXTS): _value(chance, depth + 1) for _ in range(chance.randrange(4))}
    return chance.choice([np.arange(3), np.int64(3), torch.arange(2), torch.tensor(1), (1, 2), {1}, object()])


def _spoilt(data: bytes, chance: random.Random) -> bytes:
    """The bytes, or some of them flipped, cut, moved or doubled."""
    spoilt = bytearray(data)
    for _ in range(chance.choice([0, 1, 1, 2, 8])):
        at, to = (chance.randrange(len(spoilt) + 1) for _ in range(2))
        piece = bytes(spoilt[min(at, to) : max(at, to)][:64])
        how = chance.randrange(5)
        if how == 0 and at < len(spoilt):
            spoilt[at] ^= 1 << chance.randrange(8)
        elif how == 1:
            del spoilt[at : at + chance.choice([1, 4, 64, len(spoilt)])]
        elif how == 2:
            spoilt[at:at] = piece * chance.choice([1, 3])
        elif how == 3:
            spoilt[at : at + 4] = chance.choice(
                [b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff", b"]}\n{", b'","\n']
            )
        else:
            spoilt[at:at] = chance.randbytes(chance.randrange(9))
    return bytes(spoilt)


def _rows(chance: random.Random) -> list[dict[str, Any]]:
    """Rows of a key list: mostly right ones."""
    labels: list[Callable[[], Any]] = [
        lambda: chance.randrange(9),
        chance.random,
        lambda: chance.choice(["cat", "dog", *_TEXTS]),
        lambda: [chance.randrange(5) for _ in range(3)],
        lambda: {"x": chance.random(), "y": [1, 2]},
        lambda: _value(chance, 1),
    ]
    label, versioned = chance.choice(labels), chance.random() < 0.5
    rows = []
    for number in range(chance.randrange(1, 6)):
        key = f"cat/{number}.jpg" if chance.random() < 0.9 else _value(chance)
        rows.append({"key": key, "label": label()} | ({"version": "e1"} if versioned else {}))
        if chance.random() < 0.05:
            rows[-1] |= {chance.choice(["version", "key", "label", "other"]): _value(chance)}
    return rows


def _csv(chance: random.Random) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text)
    rows = _rows(chance)
    writer.writerow(chance.choice([rows[0], ["key", "label.x", "label.y"], ["key", "label", "key"]]))
    for row in rows:
        writer.writerow([_printable(value) for value in row.values()])
    return text.getvalue().encode(chance.choice(["utf-8", "utf-8", "utf-8-sig", "utf-16"]), "surrogatepass")


def _jsonl(chance: random.Random) -> bytes:
    if chance.random() < 0.02:
        return b'{"key": "a", "label": ' + b"[" * chance.choice([20, 5000]) + b"1"
    return "".join(json.dumps(row, default=str) + "\n" for row in map(_bounded, _rows(chance))).encode()


def _parquet(chance: random.Random) -> bytes:
    stream, compression = io.BytesIO(), chance.choice(["none", "snappy", "zstd"])
    try:
        parquet.write_table(pa.Table.from_pylist(_rows(chance)), stream, compression=compression)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):  # no file has such rows
        keys = pa.array(["a", "b"]).dictionary_encode()
        stream = io.BytesIO()
        parquet.write_table(pa.table({"key": keys, "label": [1, 2]}), stream, compression=compression)
    return stream.getvalue()


def _printable(value: Any) -> Any:
    return "big" if type(value) is int and abs(value) > 10**4000 else _bounded(value)


def _bounded(value: Any) -> Any:
    """The value without the numbers that Python refuses to print."""
    if isinstance(value, dict):
        return {key: _bounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_bounded(item) for item in value]
    return 10**300 if type(value) is int and abs(value) > 10**4000 else value


def _key_list(write: Callable[[random.Random], bytes], extension: str, chance: random.Random) -> None:
    data = _spoilt(write(chance), chance)
    with tempfile.NamedTemporaryFile(suffix=extension) as file:
        file.write(data)
        file.flush()
        tally = Tally(lambda _: None, threading.Event())
        try:
            found = read_key_list(file.name, tally, of_files=chance.random() < 0.5)
            versions = found.keys if found.versions is None else found.versions
            catalog = Catalog.build("file:///x", found.keys, versions, found.labels, found.classes)
        except SourceError as error:
            if len(str(error)) > 4000:
                raise AssertionError(f"{len(str(error))} characters of {data[:200]!r}") from error
            return
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error} of {data[:400]!r}") from error
    assert len(catalog) == len(found.labels) == len(found.keys) > 0
    assert (
        catalog.labels_at(np.arange(len(catalog))).nbytes
        == len(catalog) * label_dtype_of(catalog.label_dtype).itemsize
    )


_SPEC = JobSpec(batch_size=8, seed=-7, shuffle=True, drop_last=False, rank=0, num_replicas=4)


def _checkpoint(chance: random.Random) -> None:
    in_order = chance.random() < 0.5
    checkpoint = Checkpoint(_SPEC, b"f" * 16, 50, in_order=in_order)
    position = chance.randrange(51)
    ahead = () if in_order else tuple(range(position + 1, min(50, position + 1 + chance.randrange(4))))
    place = PlanPosition(chance.choice([0, 3, 2**40]), position, ahead)
    state: Any = checkpoint.state_of(place)
    changed = chance.random() < 0.9
    if changed:
        for _ in range(chance.choice([1, 1, 2])):
            name = chance.choice(list(state))
            how = chance.randrange(3)
            if how == 0:
                state[name] = _value(chance)
            elif how == 1:
                state[chance.choice([name, "given_ahead"])] = [_value(chance) for _ in range(3)]
            else:
                del state[name]
                break
        state = state if chance.random() < 0.9 else _value(chance)
    try:
        found = checkpoint.place_in(state)
    except ConfigError:
        assert changed, "a state that was just made is refused"
        return
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}") from error
    assert changed or found == place
    assert 0 <= found.position <= 50
    assert all(found.position < one < 50 for one in found.delivered_ahead)


def _page(chance: random.Random) -> None:
    size = chance.randrange(1, 5)
    dtype = chance.choice(["int64", "float32[2]", '{"a":"int64"}'])
    message = pb.Batch(
        position=chance.randrange(9),
        batch_id=b"b" * 16,
        sample_ids=chance.randbytes(16 * size),
        labels=bytes(size * label_dtype_of(dtype).itemsize),
        padding=chance.choice([b"", bytes(size)]),
        keys=chance.choice([[], [f"{offset}.jpg" for offset in range(size)]]),
    )
    try:
        received = pb.Batch.FromString(_spoilt(message.SerializeToString(), chance))
    except DecodeError:
        return
    binding = DatasetBinding(b"d" * 16, b"f" * 16, 1000, (), dtype, "redis://x")
    try:
        ref = planned_batch(received, binding, "job", 0, 0).ref
    except ValueError:  # the pager raises it as a CoordinatorError
        return
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error} of {received!r}") from error
    assert len(ref.label_array()) == len(ref.padding_mask()) == len(ref) > 0
    assert all(ref.name_of(offset) for offset in range(len(ref)))
    assert len(ref.batch_id) == 16


def _label_dtype(chance: random.Random) -> None:
    kind = chance.choice(sorted(LABEL_KINDS))
    shape = chance.choice(["", "[3]", "[2,2]", "[0]", "[99999,99999]", "[1" + ",1" * 8 + "]"])
    text = kind + shape
    if chance.random() < 0.5:
        text = json.dumps({chance.choice(_TEXTS): chance.choice([text, 1, [text]]) for _ in range(3)})
    text = _spoilt(text.encode(), chance).decode(errors="surrogateescape")
    try:
        dtype = label_dtype_of(text)
    except ConfigError:
        return
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error} of {text!r}") from error
    assert 0 < dtype.itemsize <= MAX_LABEL_BYTES


FUZZERS: dict[str, Callable[[random.Random], None]] = {
    "key list in CSV": partial(_key_list, _csv, ".csv"),
    "key list in JSONL": partial(_key_list, _jsonl, ".jsonl"),
    "key list in Parquet": partial(_key_list, _parquet, ".parquet"),
    "state of a sampler": _checkpoint,
    "page of the plan": _page,
    "dtype of labels": _label_dtype,
}
"""Name -> makes one input and tries it; ``AssertionError`` where a user would see what nobody should."""
