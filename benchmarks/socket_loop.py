"""A bound: a bare socket loop that gathers the same bytes from the same cache as SUPER does, and nothing
else.

Pipelined GETs go out for one batch, and the replies are received into a buffer that every batch uses again.
It checks nothing, knows the length of every reply beforehand and runs in the main process. It asks SUPER once
which samples there are and has them produced; from then on it shares no code with it.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import numpy as np
import torch

from benchmarks.loading import Contender, open_planned
from benchmarks.processes import BenchmarkError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from benchmarks.image_sets import Loading

__all__ = ["SocketLoop", "connected", "open_loop"]

_HEADER_BYTES = 64  # of a record
_KEY_PREFIX = "super:r1:"
_ID_BYTES = 16


def open_loop(loading: Loading) -> Contender:
    """Learn the samples of the set, have them in the cache, and connect."""
    dataset, sampler = open_planned(loading)
    ids: list[str] = []
    labels: list[int] = []
    try:
        refs = list(sampler)
        for ref in refs:
            dataset[ref]  # read, so that it has been produced
            digits = ref.sample_ids.hex()
            ids += [digits[at : at + 2 * _ID_BYTES] for at in range(0, len(digits), 2 * _ID_BYTES)]
            labels += list(ref.label_array())
    finally:
        sampler.close()
    return Contender(SocketLoop(connected(refs[0].cache), ids, labels, loading))


class SocketLoop:
    """Batches over an open connection; ``ids`` are sample ids in hex. Each iteration is one epoch.

    A reply is ``$length``, a header, pixels and an end of line. The images of a batch are a view of its
    replies.
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
        begin = len(f"${_HEADER_BYTES + np.prod(shape)}\r\n") + _HEADER_BYTES
        end = begin + int(np.prod(shape))
        self._replies = np.zeros((loading.batch_size, end + len("\r\n")), dtype=np.uint8)
        self._images = self._replies[:, begin:end].reshape(-1, *shape)  # a view

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = self._random.permutation(len(self._requests))
        for at in range(0, len(order), self._batch_size):
            chosen = order[at : at + self._batch_size]
            self._connection.sendall(b"".join([self._requests[index] for index in chosen]))
            self._receive(len(chosen))
            images = torch.from_numpy(self._images[: len(chosen)]).permute(0, 3, 1, 2)
            yield images, torch.from_numpy(self._labels[chosen])

    def _receive(self, count: int) -> None:
        """Receive so many replies."""
        rest = self._replies[:count].reshape(-1).data
        while rest:
            received = self._connection.recv_into(rest)
            if not received:
                raise BenchmarkError("the cache closed the connection of the bare socket loop")
            rest = rest[received:]


def _request(key: str) -> bytes:
    return f"*2\r\n$3\r\nGET\r\n${len(key)}\r\n{key}\r\n".encode()


def connected(address: str) -> socket.socket:
    """Connect to the cache at ``unix:///path``, where a benchmark's services have it."""
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    opened.connect(urlsplit(address).path)
    return opened
