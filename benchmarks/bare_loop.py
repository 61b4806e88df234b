"""A bound for ``superdl bench store``: a loop that reads and hashes the records of packs, and no more."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from benchmarks.loading import Contender
from superdl.super_wire.record import HEADER_BYTES
from superdl.super_wire.store import DirectoryStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.image_sets import Loading

__all__ = ["BareLoop", "open_bare_loop"]


def open_bare_loop(loading: Loading, **how: Any) -> Contender:
    """The loop in batches of ``loading``, as an arm takes them."""
    return Contender(BareLoop(loading.batch_size, **how))


class BareLoop:
    """Reads all records of ``store``, in random batches: one ``preadv`` and one hash each, and no more.

    Within a batch they are read as they lie, each into a slot of one block; with ``one_slot`` all into the
    first. With ``ahead`` the disk fetches the next batch while the loop reads one.

    An iteration gives the sum of the hashes of each batch, and its places: pack, beginning, length.
    """

    def __init__(self, batch_size: int, store: str, *, one_slot: bool = False, ahead: bool = False) -> None:
        self._batch_size, self._ahead = batch_size, ahead
        self._epoch = 0
        self._places: list[tuple[int, int, int]] = []
        self._stack = contextlib.ExitStack()
        self.close = self._stack.close
        opened = DirectoryStore.open(store, create=False, read_only=True)
        for name, size in opened.packs().items():
            entries = opened.read_index(name, size).entries
            pack = os.open(Path(opened.address, "packs", name), os.O_RDONLY)
            self._stack.callback(os.close, pack)
            spans = zip(entries["offset"].tolist(), entries["bytes"].tolist(), strict=True)
            self._places += [(pack, *span) for span in spans]
        self._room = max(length for _, _, length in self._places)
        self._step = 0 if one_slot else self._room
        self._block = memoryview(bytearray(self._room * batch_size))
        self._header = bytearray(HEADER_BYTES)

    def __iter__(self) -> Iterator[tuple[int, list[tuple[int, int, int]]]]:
        """Begin the next epoch."""
        order = np.random.default_rng(self._epoch).permutation(len(self._places)).tolist()
        self._epoch += 1
        cuts = range(0, len(order), size := self._batch_size)
        batches = [sorted(self._places[at] for at in order[cut : cut + size]) for cut in cuts]
        for batch, following in zip(batches, [*batches[1:], []], strict=True):
            for pack, offset, length in following if self._ahead else ():
                os.posix_fadvise(pack, offset, length, os.POSIX_FADV_WILLNEED)
            yield self._read(batch), batch

    def _read(self, batch: list[tuple[int, int, int]]) -> int:
        header, block, begin, hashes = self._header, self._block, 0, 0
        for pack, offset, length in batch:
            payload = block[begin : begin + length - HEADER_BYTES]
            os.preadv(pack, (header, payload), offset)
            hashes += xxhash.xxh3_64_intdigest(payload)
            begin += self._step
        return hashes
