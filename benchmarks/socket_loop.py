"""A bound: a bare socket loop that gathers the same bytes from the same cache as SUPER does, and nothing
else.

Pipelined GETs go out for one batch, the replies are received into a buffer that every batch uses again. It
checks nothing, knows the length of every reply beforehand and runs in the main process. It asks SUPER once
which samples there are and has them produced; from then on it shares no code with it.
"""

from __future__ import annotations

import os
import socket
import ssl
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import numpy as np
import torch

from benchmarks.loading import Contender, open_planned
from benchmarks.processes import BenchmarkError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from benchmarks.image_sets import Loading

__all__ = ["Connection", "SocketLoop", "connected", "open_loop"]

_HEADER_BYTES = 64  # of a record
_KEY_PREFIX = "super:r1:"
_ID_BYTES = 16
_EOL_BYTES = 2


def open_loop(loading: Loading) -> Contender:
    """Learn the samples of the set, have them in the cache, and connect.

    Raises:
        BenchmarkError: the cache's address is none that this loop can reach.

    """
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
    """Batches over an open connection; ``ids`` are sample ids in hex. Each iteration is one epoch."""

    def __init__(
        self, connection: Connection, ids: Sequence[str], labels: Sequence[int], loading: Loading
    ) -> None:
        self._connection = connection
        self._requests = [_request(_KEY_PREFIX + digits) for digits in ids]
        self._labels = np.array(labels, dtype=np.int64)
        self._random = np.random.default_rng(loading.seed)
        self._batch_size = loading.batch_size
        self._buffer = _Buffer(loading.batch_size, (loading.crop, loading.crop, 3))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = self._random.permutation(len(self._requests))
        for at in range(0, len(order), self._batch_size):
            chosen = order[at : at + self._batch_size]
            self._connection.send(b"".join([self._requests[index] for index in chosen]))
            self._buffer.receive(self._connection, len(chosen))
            images = torch.from_numpy(self._buffer.images[: len(chosen)]).permute(0, 3, 1, 2)
            yield images, torch.from_numpy(self._labels[chosen])

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class _Buffer:
    """One batch's memory. A reply is ``$length``, a header and pixels; an end of line ends it."""

    def __init__(self, batch_size: int, shape: tuple[int, int, int]) -> None:
        self.images: NDArray[np.uint8] = np.zeros((batch_size, *shape), dtype=np.uint8)
        item_bytes = self.images[0].nbytes
        # What stands before an image: of all but the first also the end of the line before.
        frame_bytes = len(f"${item_bytes + _HEADER_BYTES}\r\n") + _HEADER_BYTES
        scratch = memoryview(bytearray(frame_bytes + _EOL_BYTES))
        pixels = self.images.reshape(-1).data
        self._views: list[memoryview] = []
        for index in range(batch_size):
            self._views.append(scratch if index else scratch[_EOL_BYTES:])
            self._views.append(pixels[index * item_bytes : (index + 1) * item_bytes])
        self._last_eol = scratch[:_EOL_BYTES]
        self._ends = list(accumulate(len(view) for view in self._views))

    def receive(self, connection: Connection, count: int) -> None:
        """Receive ``count`` replies."""
        views = [*self._views[: 2 * count], self._last_eol]
        total = self._ends[2 * count - 1] + _EOL_BYTES
        at = 0
        while at < total:
            index = bisect_right(self._ends, at)
            rest = views[index : index + connection.max_views]
            rest[0] = rest[0][at - (self._ends[index - 1] if index else 0) :]
            received = connection.receive(rest)
            if not received:
                raise BenchmarkError("the cache closed the connection of the bare socket loop")
            at += received


def _request(key: str) -> bytes:
    return f"*2\r\n$3\r\nGET\r\n${len(key)}\r\n{key}\r\n".encode()


class Connection:
    """A socket that receives into many places at once."""

    max_views = 64

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened

    def send(self, data: bytes) -> None:
        """Send all of it."""
        self._socket.sendall(data)

    def receive(self, views: Sequence[memoryview]) -> int:
        """Receive what is there into these places in order; how many bytes came."""
        return self._socket.recvmsg_into(views)[0]

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class _TlsConnection(Connection):
    """One place at a time is all that TLS in Python can do."""

    max_views = 1

    def receive(self, views: Sequence[memoryview]) -> int:
        return self._socket.recv_into(views[0])


def connected(address: str) -> Connection:
    """A connection to a cache at ``unix:///path``, ``redis://host:port`` or ``rediss://host:port``.

    A certificate is verified by the authorities of ``SUPER_CACHE_CA_FILE``, or else by the system's.

    Raises:
        BenchmarkError: the address is none of these.

    """
    parts = urlsplit(address)
    if parts.scheme == "unix":
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        opened.connect(parts.path)
        return Connection(opened)
    if parts.scheme not in ("redis", "rediss") or parts.hostname is None:
        raise BenchmarkError(f"the bare socket loop cannot reach a cache at {address}")
    opened = socket.create_connection((parts.hostname, parts.port))
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if parts.scheme == "redis":
        return Connection(opened)
    context = ssl.create_default_context(cafile=os.environ.get("SUPER_CACHE_CA_FILE") or None)
    return _TlsConnection(context.wrap_socket(opened, server_hostname=parts.hostname))
