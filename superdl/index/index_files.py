"""The index files of DALI and WebDataset that lie beside shards: which there are, and what they say.

That of ``wds2idx`` tells where the members of a tar lie, so that the tar need not be read. Others tell no
more than shards do: those of ``tfrecord2idx`` and ``rec2idx`` where records begin, WebDataset's ``shardlist``
how many samples there are.
"""

from __future__ import annotations

import re
import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from superdl.index.shard import Shard, ShardError, Shards

__all__ = ["end_of", "index_files", "index_of_tar", "indexed_members", "stale"]

_BLOCK = tarfile.BLOCKSIZE
_INDEX_BYTES = 2**28
_BEGINNING_BYTES = 2**12
_MOST_SHARDLISTS = 16  # of more JSON files than that none is looked into
_WORDS = 4  # of a member: extension, offset, size, name
_SHORT = 100  # bytes of a name; longer ones stand in headers of their own
_NUMBER = re.compile(r"[0-9]{1,18}")


def index_files(shards: Shards, keys: Collection[str]) -> set[str]:
    """Which of these objects are index files."""
    found = {key for key in keys if key.endswith((".idx", ".tar.index"))}
    lists = [key for key in keys if key.endswith(".json")]
    for key in lists if len(lists) <= _MOST_SHARDLISTS else ():
        file = shards.open(key)
        if b'"shardlist"' in file.read(0, min(file.size, _BEGINNING_BYTES)):
            found.add(key)
        file.close()
    return found


def index_of_tar(key: str, found: Collection[str]) -> str | None:
    """The key of a tar's index, if there is one: up to the tar's first dot, as ``wds2idx`` has it, up to its
    last, or after it.
    """
    folder, slash, base = key.rpartition("/")
    stems = f"{folder}{slash}{base[:1]}{base[1:].partition('.')[0]}", key.removesuffix(".tar"), key
    return next((f"{stem}.idx" for stem in stems if f"{stem}.idx" in found), None)


def indexed_members(shard: Shard, index: Shard) -> list[tarfile.TarInfo] | None:
    """The files in a tar as its index has them; ``None`` where it leaves their names to the tar.

    Of the tar the headers of some are looked at: the first, the last, one between, and those around the
    first gap that holds more than a header: ``wds2idx`` misreads what has headers of its own for a long name.

    Raises:
        ShardError: the index is broken, or not of this tar.
    """
    if index.size > _INDEX_BYTES:
        raise index.error(f"an index of {index.size:,} bytes; at most {_INDEX_BYTES:,} are read")
    version, _, rest = index.read(0, index.size).decode(errors="surrogateescape").partition(" ")
    count, *lines = rest.removesuffix("\n").split("\n")
    if version == "v1.1":  # it has none
        return None
    if version != "v1.2" or count.strip() != str(len(lines)) or not lines:
        raise index.error(f"it is no index of version v1.2 and {len(lines)} lines, as wds2idx writes it")
    found = list(_files_in(index, lines, shard))
    if any("\\" in info.name for info in found):  # as GNU tar tells names that are not ASCII
        return None
    places = range(1, len(found))
    gap = next((at for at in places if found[at].offset_data > end_of(found[at - 1]) + _BLOCK), 0)
    # From the end on, for pieces that lie far apart are fetched alone.
    for place in sorted({0, max(0, gap - 1), gap, len(found) // 2, len(found) - 1}, reverse=True):
        if not _is_at_its_place(shard, found[place]):
            raise stale(shard, index, found[place].name)
    return found


def end_of(info: tarfile.TarInfo) -> int:
    """Where the blocks of a file in a tar end."""
    return info.offset_data + -(-info.size // _BLOCK) * _BLOCK


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


def stale(shard: Shard, index: Shard, member: str) -> ShardError:
    """The error for an index that says otherwise than its tar, of a member."""
    return shard.error(
        f"the index {index.key} says otherwise: it is older than the tar, of another one, or wds2idx misread "
        "the tar: write it again, or delete it and the tar itself is read",
        member,
    )


def _is_at_its_place(shard: Shard, info: tarfile.TarInfo) -> bool:
    """Whether the header before its bytes is this file's."""
    block = shard.read(info.offset_data - _BLOCK, _BLOCK, info.name)
    try:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except (tarfile.TarError, ValueError):
        return False
    named = header.name == info.name or len(info.name) >= _SHORT or not info.name.isascii()
    return named and header.isreg() and header.size == info.size
