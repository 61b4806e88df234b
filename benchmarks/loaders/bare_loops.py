"""Lower bounds: loops in the main process that read the same data as SUPER and do nothing else."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import torch
import xxhash

from benchmarks.harness.arm import Contender
from benchmarks.harness.processes import BenchmarkError
from benchmarks.loaders.opening import open_planned
from superdl.super_wire.record import HEADER_BYTES
from superdl.super_wire.store import DirectoryStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from benchmarks.harness.image_sets import Loading

_KEY_PREFIX = "super:r1:"
_ID_BYTES = 16


def open_socket_loop(loading: Loading) -> Contender:
    """List the set's samples, make sure that they are cached, and connect to the cache."""
    dataset, sampler = open_planned(loading)
    ids: list[str] = []
    labels: list[int] = []
    try:
        refs = list(sampler)
        for ref in refs:
            dataset[ref]  # reading it makes sure that it was produced
            digits = ref.sample_ids.hex()
            ids += [digits[at : at + 2 * _ID_BYTES] for at in range(0, len(digits), 2 * _ID_BYTES)]
            labels += list(ref.label_array())
    finally:
        sampler.close()
    return Contender(SocketLoop(connected(refs[0].cache), ids, labels, loading))


class SocketLoop:
    """Batches from pipelined GETs over an open connection. ``ids`` are sample ids in hex.

    Each iteration is one epoch. A batch is valid until the next one, which reuses its buffer.
    """

    def __init__(
        self, connection: socket.socket, ids: Sequence[str], labels: Sequence[int], loading: Loading
    ) -> None:
        self._connection = connection
        self.close = connection.close
        self._requests = [_request(_KEY_PREFIX + digits) for digits in ids]
        self._labels = np.array(labels, dtype=np.int64)
        self._random = np.random.default_rng(loading.seed)
        self._batch_size = loading.batch_size
        shape = (loading.crop, loading.crop, 3)
        # A reply, of known length: $length, a header, pixels and an end of line.
        begin = len(f"${HEADER_BYTES + np.prod(shape)}\r\n") + HEADER_BYTES
        end = begin + int(np.prod(shape))
        self._replies = np.zeros((loading.batch_size, end + len("\r\n")), dtype=np.uint8)
        self._images = self._replies[:, begin:end].reshape(-1, *shape)  # a view

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = self._random.permutation(len(self._requests))
        for start in range(0, len(order), self._batch_size):
            indices = order[start : start + self._batch_size]
            self._connection.sendall(b"".join([self._requests[index] for index in indices]))
            self._receive(len(indices))
            images = torch.from_numpy(self._images[: len(indices)]).permute(0, 3, 1, 2)
            yield images, torch.from_numpy(self._labels[indices])

    def _receive(self, count: int) -> None:
        buffer = self._replies[:count].reshape(-1).data
        while buffer:
            received = self._connection.recv_into(buffer)
            if not received:
                raise BenchmarkError("the cache closed the connection of the bare socket loop")
            buffer = buffer[received:]


def _request(key: str) -> bytes:
    return f"*2\r\n$3\r\nGET\r\n${len(key)}\r\n{key}\r\n".encode()


def connected(address: str) -> socket.socket:
    """Connect to the cache at ``unix:///path``, as set up by a benchmark's services."""
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    opened.connect(urlsplit(address).path)
    return opened


def open_pack_loop(loading: Loading, **how: Any) -> Contender:
    """Open a pack loop with the batch size of ``loading``, as a contender."""
    return Contender(PackLoop(loading.batch_size, **how))


class PackLoop:
    """A loop over ``store`` in random batches: a ``preadv`` and a hash per record.

    Each record is read into its own slot of one block, or into the first slot with ``one_slot``. With
    ``ahead``, the disk fetches the next batch while the loop reads the current one. An iteration yields
    the sum of each batch's hashes, and its places as (pack, start, length).
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
        order = np.random.default_rng(self._epoch).permutation(len(self._places)).tolist()
        self._epoch += 1
        starts = range(0, len(order), size := self._batch_size)
        # Each batch is read in pack order.
        batches = [sorted(self._places[at] for at in order[start : start + size]) for start in starts]
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
