"""Small files that claim or expand to far more memory than their size, and the SUPER code that reads them.

``python -m tests.hostile.bombs NAME FILE`` reads one in its own process. It prints the outcome and by how
many MiB the process grew.
"""

import io
import json
import os
import re
import struct
import sys
import threading
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from superdl.coordinator.catalog.key_list import read_key_list
from superdl.coordinator.catalog.listing import Tally
from superdl.lambda_prefetch.decode import configure_pillow, decode
from superdl.lambda_prefetch.members import content_of, read_rows
from superdl.lambda_prefetch.sources import SampleFailedError
from superdl.super_wire.errors import SuperError
from superdl.super_wire.objects.directory import Directory
from superdl.super_wire.request import Limits
from superdl.super_wire.store import DirectoryStore
from tests.lambda_prefetch.prefetching import file_version, member_request

LIMIT_BYTES = 16 * 2**20
HUGE = 256 * 2**20
LIMIT_PIXELS = 4 * 2**20
SIDE = 9600  # of a tile, which takes 264 MiB
RGB = struct.pack("<3H", 8, 8, 8)


def packed_zeros(size=HUGE, wbits=zlib.MAX_WBITS):
    packing = zlib.compressobj(9, wbits=wbits)
    return b"".join(packing.compress(bytes(2**20)) for _ in range(size // 2**20)) + packing.flush()


def varint(value, length):
    groups = [(2 * value) >> (7 * place) & 127 for place in range(length)]
    return bytes([*(group | 128 for group in groups[:-1]), groups[-1]])


def arrow():
    """Imported here: only readers of Parquet files need the memory of these libraries."""
    import pyarrow as pa
    from pyarrow import parquet

    return pa, parquet


def lie(data, true, false, begin=0):
    """Replace the first such size after a position."""
    length = (2 * true).bit_length() // 7 + 1
    place = data.index(varint(true, length), begin)
    data[place : place + length] = varint(false, length)


def write_parquet(path, *, lie_at="footer", **options):
    """A column of 256 MiB, with a false size in the footer or also in the page's header."""
    pa, parquet = arrow()
    values = [bytes(HUGE // 8)] * 8
    table = pa.table({"image": pa.array(values, pa.binary())})
    options = {"use_dictionary": False, "write_statistics": False, "data_page_size": 2**31 - 1} | options
    parquet.write_table(table, path, **options)
    chunk = parquet.read_metadata(path).row_group(0).column(0)
    data = bytearray(path.read_bytes())
    footer_at = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    lie(data, chunk.total_uncompressed_size, 100_000, footer_at)
    if lie_at == "page":
        lie(data, sum(map(len, values)) + 8 * 4 + 6, 100_000)  # a length per value, and the levels
    path.write_bytes(data)


def write_hidden_size(path):
    """Hide a page's true size behind a false one: in field 65,538, which Thrift truncates to 2."""
    pa, parquet = arrow()
    table = pa.table({"image": [bytes(HUGE)]})
    options = {"use_dictionary": False, "write_statistics": False, "store_schema": False}
    parquet.write_table(table, path, compression="zstd", **options)
    chunk = parquet.read_metadata(path).row_group(0).column(0)
    data, size = bytearray(path.read_bytes()), HUGE + 4 + 6  # one length, and the levels
    hidden = b"\x05" + varint(65_538, 3) + varint(size, 5)
    head = data.index(b"\0\0", 4) + 1  # the stop bytes of statistics and data page header
    data[head + 1 : head + 1] = hidden
    stored = chunk.total_compressed_size
    lie(data, stored, stored + len(hidden), len(data) // 2)
    lie(data, chunk.total_uncompressed_size, 200_000, len(data) // 2)
    lie(data, size, 100_000)
    path.write_bytes(data)


def write_shared_texts(path):
    pa, parquet = arrow()
    rows = 10_000
    labels = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), ["x" * 100_000])
    keys = [f"{row}.jpg" for row in range(rows)]
    parquet.write_table(pa.table({"key": keys, "label": labels.cast(pa.string())}), path, store_schema=False)


def write_long_list(path):
    pa, parquet = arrow()
    label = pa.array([np.zeros(HUGE // 8, dtype=np.int64)])
    parquet.write_table(pa.table({"key": ["1.jpg"], "label": label}), path, compression="zstd")


def read_rows_of_list(path):
    link = path.with_suffix(".parquet")
    path.rename(link)
    return read_key_list(str(link), Tally(lambda _: None, threading.Event()), of_files=True)


def write_shared_prefixes(path):
    pa, parquet = arrow()
    table = pa.table({"image": pa.array([bytes(8 * 2**20)] * 32, pa.binary())})
    parquet.write_table(table, path, use_dictionary=False, column_encoding={"image": "DELTA_BYTE_ARRAY"})


def read_parquet(path):
    rows = [{"key": path.name, "version": file_version(path), "member": "m", "offset": 0, "length": 0}]
    rows[0]["encoding"] = "parquet:image"
    bucket = Directory(str(path.parent))
    content = read_rows(request(path, rows), [0], bucket, lambda _: None).contents[0]
    if isinstance(content, SampleFailedError):
        raise content
    return content


def request(path, rows):
    whole = member_request(f"file://{path.parent}", rows, "redis://h:1")
    return replace(whole, limits=Limits(object_bytes=LIMIT_BYTES))


def read_deflated(path):
    row = {"key": path.name, "version": "1-1", "member": "m", "offset": 0, "length": path.stat().st_size}
    return content_of(request(path, [row | {"encoding": "deflate"}]), 0, path.read_bytes())


def tiff(*tags, behind=b""):
    """A TIFF of 16 x 16 pixels with more tags: number, type, count, value."""
    short, long = (lambda value: struct.pack("<HH", value, 0)), (lambda value: struct.pack("<I", value))
    base = [(256, 4, 1, long(16)), (257, 4, 1, long(16)), (258, 3, 3, RGB), (262, 3, 1, short(2))]
    every = sorted([*base, (259, 3, 1, short(8)), (277, 3, 1, short(3)), *tags])
    values_at, values, entries = 8 + 2 + 12 * len(every) + 4, b"", b""
    for number, kind, count, value in every:
        place = value
        if len(value) > 4:
            place, values = long(values_at + len(values)), values + value
        entries += struct.pack("<HHI", number, kind, count) + (place or long(values_at + len(RGB)))
    return b"II*\0" + long(8) + struct.pack("<H", len(every)) + entries + long(0) + values + behind


def tiled():
    packed, side = packed_zeros(3 * SIDE * SIDE), struct.pack("<I", SIDE)
    places = (324, 4, 1, b""), (325, 4, 1, struct.pack("<I", len(packed)))
    return tiff((322, 4, 1, side), (323, 4, 1, side), *places, behind=packed)


def countless():
    places = [(number, 4, 2**31, b"") for number in (273, 279)]
    return tiff(*places, (700, 1, 2**32 - 1, b""), (34675, 7, 2**31, b""))


def png(name, head):
    """A PNG with four chunks of one type that each expand to 256 MiB."""
    file, packed = io.BytesIO(), packed_zeros()
    Image.new("RGB", (8, 8)).save(file, "PNG")
    data = name + head + packed
    chunk = struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))
    return file.getvalue()[:33] + 4 * chunk + file.getvalue()[33:]


def webp():
    side = (16382).to_bytes(3, "little")
    canvas = struct.pack("<4sI4s", b"VP8X", 10, b"\2\0\0\0") + side + side
    parts = canvas + struct.pack("<4sI6x4sI16x", b"ANIM", 6, b"ANMF", 16)
    return struct.pack("<4sI4s", b"RIFF", len(parts) + 4, b"WEBP") + parts


def gif():
    head = struct.pack("<6sHHBBB6x", b"GIF89a", 65535, 65535, 0x80, 0, 0)
    return head + struct.pack("<c4HB", b",", 0, 0, 65535, 65535, 0) + b"\x02\x02\x4c\x01\0;"


def bmp():
    head = struct.pack("<2sIHHI", b"BM", 100, 0, 0, 54)
    return head + struct.pack("<IiiHHIIiiII", 40, 60_000, 60_000, 1, 24, 0, 0, 0, 0, 0, 0)


def read_image(path):
    return decode(path.read_bytes(), limit_pixels=LIMIT_PIXELS)


def write_segment(path):
    store = DirectoryStore.open(path, create=True)
    os.truncate(path / "index" / store.write_segment(b""), 2**31)


def read_store(path):
    store = DirectoryStore.open(path, create=False)
    return store.read_segment(store.segments()[0])


def file_of(make):
    return lambda path: path.write_bytes(make())


CODECS = ("snappy", "zstd", "gzip", "lz4", "brotli")
BOMBS = {
    **{
        f"parquet-{codec}-{place}": (
            lambda path, codec=codec, place=place: write_parquet(path, lie_at=place, compression=codec),
            read_parquet,
            "too_large" if place == "footer" else "undecodable",
        )
        for codec in CODECS
        for place in ("footer", "page")
    },
    "parquet-hidden-size": (write_hidden_size, read_parquet, "undecodable"),
    "key-list-texts": (write_shared_texts, read_rows_of_list, "SourceError"),
    "key-list-numbers": (write_long_list, read_rows_of_list, "SourceError"),
    "parquet-prefixes": (write_shared_prefixes, read_parquet, "undecodable"),
    "zip-member": (file_of(lambda: packed_zeros(wbits=-15)), read_deflated, "too_large"),
    "tiff-tile": (file_of(tiled), read_image, "too_large"),
    "tiff-counts": (file_of(countless), read_image, "undecodable"),
    "png-text": (file_of(lambda: png(b"zTXt", b"k\0\0")), read_image, "undecodable"),
    "png-unicode-text": (file_of(lambda: png(b"iTXt", b"k\0\1\0\0\0")), read_image, "undecodable"),
    "png-profile": (file_of(lambda: png(b"iCCP", b"k\0\0")), read_image, "undecodable"),
    "webp-canvas": (file_of(webp), read_image, "undecodable"),
    "gif-screen": (file_of(gif), read_image, "too_large"),
    "bmp-size": (file_of(bmp), read_image, "too_large"),
    "ppm-size": (file_of(lambda: b"P6 60000 60000 255\n"), read_image, "too_large"),
    "store-segment": (write_segment, read_store, "StoreFormatError"),
}
"""By name: the writer of the file, its reader, and the expected tombstone reason or error type."""


def memory_mib(row):
    """This process's memory in MiB: ``VmRSS`` is current, ``VmHWM`` is the peak."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{row}:\s+(\d+)", status)[1]) // 1024


def main():
    name, path = sys.argv[1], Path(sys.argv[2])
    configure_pillow()
    decode(png_of_a_dot(), limit_pixels=1)
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before, ended = memory_mib("VmRSS"), "read"
    try:
        BOMBS[name][1](path)
    except SampleFailedError as error:
        ended = error.reason
    except SuperError as error:
        ended = type(error).__name__
    print(json.dumps({"ended": ended, "mib": memory_mib("VmHWM") - before}))  # noqa: T201


def png_of_a_dot():
    file = io.BytesIO()
    Image.fromarray(np.zeros((1, 1, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


if __name__ == "__main__":
    main()
