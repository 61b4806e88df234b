"""Fuzzers of data from users, coordinators and AWS: key lists, label files, states, pages, prices.

An input passes if it is handled correctly, or refused with one of SUPER's own errors.
"""

import csv
import dataclasses
import io
import json
import tempfile
import threading
from functools import partial

import numpy as np
import pyarrow as pa
import torch
from google.protobuf.message import DecodeError
from pyarrow import parquet

from superdl.coordinator.catalog.catalog import Catalog
from superdl.coordinator.catalog.key_list import read_key_list
from superdl.coordinator.catalog.listing import Tally
from superdl.coordinator.catalog.members import Field
from superdl.coordinator.catalog.state import CatalogState
from superdl.index.choices import Choices
from superdl.index.loose import coco_in, label_in
from superdl.sampler.checkpoint import Checkpoint
from superdl.sampler.pages import planned_batch
from superdl.sampler.prefetch import PlanPosition
from superdl.sampler.session import JobSpec
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.batch_ref import DatasetBinding
from superdl.super_wire.errors import ConfigError, SourceError
from superdl.super_wire.labels import MAX_LABEL_BYTES, label_dtype_of, unpack_labels
from tests.hostile.fuzz_wire import TEXTS, any_value, mutate
from tests.superdl.index.shards import held_shard


def _value(chance):
    """Any value that JSON or a pickle can hold."""
    odd = (np.arange(3), np.int64(3), torch.arange(2), torch.tensor(1), (1, 2), {1}, b"bytes", object())
    return chance.choice(odd) if chance.random() < 0.2 else any_value(chance)


def _rows(chance):
    """Rows of a key list, mostly valid."""
    labels = [
        lambda: chance.randrange(9),
        chance.random,
        lambda: chance.choice(["cat", "dog", *TEXTS]),
        lambda: [chance.randrange(5) for _ in range(3)],
        lambda: {"x": chance.random(), "y": [1, 2]},
        lambda: {"x[]": [[1, 2]] * chance.randrange(3), "y[]": ["a", "b"][: chance.randrange(3)], "z": 1},
        lambda: _value(chance),
    ]
    label, versioned, of_members = chance.choice(labels), chance.random() < 0.5, chance.random() < 0.4
    varying, fields = chance.random() < 0.1, chance.random() < 0.3
    rows = []
    for number in range(chance.randrange(1, 6)):
        key = f"cat/{number}.jpg" if chance.random() < 0.9 else _value(chance)
        rows.append({"key": key, "label": label()} | ({"version": "e1"} if versioned else {}))
        if varying:
            rows[-1]["label[]"] = [chance.randrange(5) for _ in range(chance.randrange(4))]
            del rows[-1]["label"]
        if of_members:
            encoding = chance.choice(["", "", "deflate", "parquet:image"]) if chance.random() < 0.1 else ""
            place = {"member": f"{number}.jpg", "offset": 10 * number, "length": 10, "encoding": encoding}
            rows[-1] |= {"key": chance.choice(["a.tar", "b.tar"]), **place}
        if fields:
            rows[-1] |= {"mask.key": f"masks/{number // 2}.png"}
            place = {"depth.member": f"{number}.tif", "depth.offset": number, "depth.length": 9}
            rows[-1] |= place if of_members else {}
        if chance.random() < 0.05:
            columns = ["version", "key", "label", "other", "member", "offset", "length", "encoding"]
            columns += ["mask.key", "mask.version", "mask.member", "depth.length", "image.key", "a b.key"]
            rows[-1] |= {chance.choice(columns): _value(chance)}
    return rows


def _csv(chance):
    text = io.StringIO()
    writer = csv.writer(text)
    rows = _rows(chance)
    writer.writerow(chance.choice([rows[0], ["key", "label.x", "label.y"], ["key", "label", "key"]]))
    for row in rows:
        writer.writerow(row.values())
    return text.getvalue().encode(chance.choice(["utf-8", "utf-8", "utf-8-sig", "utf-16"]), "surrogatepass")


def _jsonl(chance):
    if chance.random() < 0.02:
        return b'{"key": "a", "label": ' + b"[" * chance.choice([20, 5000]) + b"1"
    return "".join(json.dumps(row, default=str) + "\n" for row in _rows(chance)).encode()


def _parquet(chance):
    stream, compression = io.BytesIO(), chance.choice(["none", "snappy", "zstd"])
    try:
        table = pa.Table.from_pylist(_rows(chance))
        if chance.random() < 0.1:  # another type, maybe with values Python lacks
            kind = chance.choice(
                [pa.timestamp("us"), pa.timestamp("ns", "Mars"), pa.duration("ns"), pa.date32()]
            )
            values = pa.array([chance.choice([1, 2**30, 2**31 - 1])] * len(table), pa.int32())
            odd = values.cast(pa.int64()).cast(kind) if kind.bit_width == 64 else values.cast(kind)
            place = chance.randrange(table.num_columns)
            table = table.set_column(place, table.column_names[place], odd)
        parquet.write_table(table, stream, compression=compression)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):  # rows that no file can hold
        keys = pa.array(["a", "b"]).dictionary_encode()
        stream = io.BytesIO()
        parquet.write_table(pa.table({"key": keys, "label": [1, 2]}), stream, compression=compression)
    return stream.getvalue()


def _key_list(write, extension, chance):
    data = mutate(chance, write(chance)) if chance.random() < 0.7 else write(chance)
    with tempfile.NamedTemporaryFile(suffix=extension) as file:
        file.write(data)
        file.flush()
        tally = Tally(lambda _: None, threading.Event())
        try:
            parsed = read_key_list(file.name, tally, of_files=chance.random() < 0.5)
            own = parsed.own
            versions = own.keys if own.versions is None else own.versions
            columns = own.keys, versions, parsed.labels, parsed.classes
            fields = [
                Field(name, part.keys, part.versions or part.keys, part.members)
                for name, part in parsed.fields.items()
            ]
            catalog = Catalog.build("file:///x", *columns, members=own.members, fields=fields)
        except SourceError as error:
            assert len(str(error)) <= 4000, data[:200]  # noqa: PT017  # a refusal is right, if it is short
            return
    _check_file(catalog)
    names = [field.name for field in catalog.fields]
    assert len(catalog.sample_ids(b"", fields=names)) == 16 * len(catalog)
    assert len(catalog) == len(parsed.labels) == len(own.members or own.keys) > 0
    assert len(catalog.names_at(np.arange(len(catalog)))) == len(catalog)
    labels = unpack_labels(catalog.labels_at(np.arange(len(catalog))), catalog.label_dtype, len(catalog))
    assert len(list(labels)) == len(catalog)
    assert catalog.label_sizes().max() <= MAX_LABEL_BYTES


def _check_file(catalog):
    """Assert that a catalog mapped from its file equals the one written."""
    mapped, _ = CatalogState(None).hold(catalog)
    everything, names = np.arange(len(catalog)), [field.name for field in catalog.fields]
    for read in (
        lambda of: (of.fingerprint, of.bucket, of.classes, of.warnings, of.alias, of.prefix),
        lambda of: (of.label_dtype, of.label_bytes, of.labels_at(everything)),
        lambda of: (of.part_columns(everything[::-1], names), of.sample_ids(b"", fields=names)),
        lambda of: (of.names_at(everything), of.label_sizes().tolist()),
        lambda of: dataclasses.replace(of, fingerprint=b"").fingerprint,
    ):
        assert read(mapped) == read(catalog)
    assert mapped is not catalog


_SPEC = JobSpec(batch_size=8, seed=-7, shuffle=True, drop_last=False, rank=0, num_replicas=4)


def _checkpoint(chance):
    in_order = chance.random() < 0.5
    checkpoint = Checkpoint(_SPEC, b"f" * 16, 50, in_order=in_order)
    position = chance.randrange(51)
    ahead = () if in_order else tuple(range(position + 1, min(50, position + 1 + chance.randrange(4))))
    place = PlanPosition(chance.choice([0, 3, 2**40]), position, ahead)
    state = checkpoint.state_of(place)
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
        place_read = checkpoint.position_in(state)
    except ConfigError:
        assert changed, "refused an unchanged state"
        return
    assert changed or place_read == place
    assert 0 <= place_read.position <= 50
    assert all(place_read.position < ahead < 50 for ahead in place_read.delivered_ahead)


def _page(chance):
    size = chance.randrange(1, 5)
    dtype = chance.choice(
        ["int64", "float32[2]", '{"a":"int64"}', "uint8[*]", '{"a":"int64","b":"uint8[*,2]"}']
    )
    counts = b"" if "*" not in dtype else size.to_bytes(4, "little")
    message = pb.Batch(
        position=chance.randrange(9),
        batch_id=b"b" * 16,
        sample_ids=chance.randbytes(16 * size),
        labels=counts + bytes(size * label_dtype_of(dtype).itemsize),
        padding=chance.choice([b"", bytes(size)]),
        keys=chance.choice([[], [f"{offset}.jpg" for offset in range(size)]]),
    )
    if chance.random() < 0.5:
        pack_of = np.array([chance.randrange(3) for _ in range(size)], dtype="<u4")
        message.pack_of, message.offsets, message.lengths = (
            pack_of.tobytes(),
            bytes(8 * size),
            bytes(4 * size),
        )
    try:
        received = pb.Batch.FromString(mutate(chance, message.SerializeToString()))
    except DecodeError:
        return
    binding = DatasetBinding(b"d" * 16, b"f" * 16, 1000, (), dtype, "redis://x", "/store")
    try:
        ref = planned_batch(received, ["p", "q"], binding, "job", 0, 0)
    except ValueError:  # the pager turns it into a CoordinatorError
        return
    assert len(ref.label_array()) == len(ref.padding_mask()) == len(ref) > 0
    assert all(ref.name_of(offset) for offset in range(len(ref)))
    assert len(ref.batch_id) == 16
    if ref.places is not None:
        columns = (ref.places.pack_of, ref.places.offsets, ref.places.lengths)
        assert [len(column) for column in columns] == [4 * len(ref), 8 * len(ref), 4 * len(ref)]
        assert max(np.frombuffer(ref.places.pack_of, "<u4"), default=0) <= len(ref.places.packs)


_COCO = {
    "images": [{"id": 9, "file_name": "b.jpg", "height": 480, "width": 640}],
    "annotations": [
        {"image_id": 9, "category_id": 18, "bbox": [1, 2.5, 3, 4], "iscrowd": 0, "segmentation": []}
    ],
}


def _coco(chance):
    coco = json.loads(json.dumps(_COCO))
    if chance.random() < 0.7:
        row = chance.choice([coco, coco["images"][0], coco["annotations"][0]])
        row[chance.choice(list(row))] = any_value(chance)
    content = json.dumps(coco, default=str).encode()
    try:
        labels = coco_in(held_shard(mutate(chance, content) if chance.random() < 0.5 else content, "x.json"))
    except SourceError as error:
        assert len(str(error)) <= 1000  # noqa: PT017  # as above
        return
    for label in labels.values():
        assert len(label["boxes[]"]) == len(label["classes[]"]) == len(label["crowd[]"])


def _label_file(chance):
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


FUZZERS = {
    "key list in CSV": partial(_key_list, _csv, ".csv"),
    "key list in JSONL": partial(_key_list, _jsonl, ".jsonl"),
    "key list in Parquet": partial(_key_list, _parquet, ".parquet"),
    "state of a sampler": _checkpoint,
    "page of the plan": _page,
    "instances of COCO": _coco,
    "label file": _label_file,
}
