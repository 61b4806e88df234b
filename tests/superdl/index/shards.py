"""Write shards as other libraries do, and index them."""

import io
import json
import struct
import tarfile
import zlib

from superdl.index.shard import Shard
from superdl.main import main


def index(source, out, *words):
    """The rows that the command writes."""
    assert main(["index", str(source), "-o", str(out), "--force", *words]) == 0
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def refused(capsys, source, out, *words):
    """What the command says of a source for which it writes no list."""
    capsys.readouterr()
    assert main(["index", str(source), "-o", str(out), *words]) in {1, 2}
    assert not out.exists()
    return capsys.readouterr().err


def write_files(directory, files):
    """Files with their texts or bytes, in folders made for them."""
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return directory


def content_of(row, directory):
    """A member's bytes, by its row alone."""
    path = directory / row["key"]
    if row["encoding"].startswith("parquet:"):
        from pyarrow import parquet

        column, *fields = row["encoding"].removeprefix("parquet:").split(".")
        value = parquet.ParquetFile(path).read_row_group(row["offset"])[column][row["length"]].as_py()
        for name in fields:
            value = value[name]
        return value
    content = path.read_bytes()[row["offset"] : row["offset"] + row["length"]]
    return zlib.decompress(content, wbits=-15) if row["encoding"] == "deflate" else content


def tar_of(path, files, form=tarfile.GNU_FORMAT):
    """A tar of files, in their order."""
    with tarfile.open(path, "w", format=form) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def held_shard(content, key):
    """A shard in memory."""
    return Shard(f"held/{key}", key, "1", len(content), lambda length, at: content[at : at + length])


def _varint(value):
    value &= 2**64 - 1
    content = bytearray()
    while value >= 0x80:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*content, value])


def _field(number, content):
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _feature(value):
    if isinstance(value, bytes):
        return _field(1, _field(1, value))
    if isinstance(value, float):
        return _field(2, _field(1, struct.pack("<f", value)))
    return _field(3, _field(1, _varint(value)))


def tfrecord_of(path, examples):
    """Records of Examples, each feature of one value, framed as TensorFlow frames them, without checksums."""
    with path.open("wb") as file:
        for example in examples:
            entries = [
                _field(1, name.encode()) + _field(2, _feature(value)) for name, value in example.items()
            ]
            record = _field(1, b"".join(_field(1, entry) for entry in entries))
            file.write(struct.pack("<QI", len(record), 0) + record + bytes(4))
    return path


def _chunk(samples, config=b""):
    at = 4 * (len(samples) + 2) + len(config)
    offsets = [at]
    for sample in samples:
        offsets.append(offsets[-1] + len(sample))
    return struct.pack(f"<{len(samples) + 2}I", len(samples), *offsets) + config + b"".join(samples)


def mds_of(directory, samples):
    """An MDS shard of images and int64 labels with its index, byte for byte as MDSWriter lays them out."""
    config = {"version": 2, "format": "mds", "compression": None, "hashes": [], "size_limit": 2**26}
    config |= {"column_names": ["image", "label"], "column_encodings": ["bytes", "int"]}
    config["column_sizes"] = [None, 8]
    rows = [struct.pack("<I", len(image)) + image + struct.pack("<q", label) for image, label in samples]
    content = _chunk(rows, json.dumps(config, sort_keys=True).encode())
    (directory / "shard.00000.mds").write_bytes(content)
    raw = {"basename": "shard.00000.mds", "bytes": len(content), "hashes": {}}
    shard = {**config, "raw_data": raw, "zip_data": None, "samples": len(rows)}
    (directory / "index.json").write_text(json.dumps({"version": 2, "shards": [shard]}))
    return directory / "shard.00000.mds"


def litdata_of(directory, samples):
    """A chunk of images and int64 labels with its index, byte for byte as LitData lays them out."""
    rows = [struct.pack("<2I", len(image), 8) + image + struct.pack("<q", label) for image, label in samples]
    return _litdata_chunk(directory, _chunk(rows), len(rows), ["jpeg", "int"])


def litdata_arrow_of(directory):
    """The same of bytes and numbers, which it writes as the rows of an Arrow file inside the chunk."""
    content = struct.pack("<5I", 3, *[20] * 4) + b"ARROW1\0\0" + bytes(100)
    return _litdata_chunk(directory, content, 3, ["bytes", "int"])


def _litdata_chunk(directory, content, samples, kinds):
    (directory / "chunk-0-0.bin").write_bytes(content)
    leaf = {"type": None, "context": None, "children_spec": []}
    spec = [1, {"type": "builtins.dict", "context": '["image", "label"]', "children_spec": [leaf, leaf]}]
    config = {"compression": None, "encryption": None, "item_loader": "PyTreeLoader"}
    config |= {"data_format": kinds, "data_spec": json.dumps(spec)}
    chunk = {"filename": "chunk-0-0.bin", "chunk_size": samples, "chunk_bytes": len(content), "dim": None}
    (directory / "index.json").write_text(json.dumps({"chunks": [chunk], "config": config}))
    return directory / "chunk-0-0.bin"
