"""Random numbers that depend only on seed, epoch and sample, by the counter-based Philox4x32-10.

See Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from superdl.super_wire.ids import ID_BYTES, digest128

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROUNDS = 10
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_WORDS = 4  # words of 32 bits per block
_KEY_BYTES = 8  # of Philox's key, two words


def philox4x32(counter: NDArray[np.uint64], key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return 32-bit words, shape (4, ...), for counters (4, ...) and keys (2, ...)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        first, second = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1 = (second >> _HALF) ^ c1 ^ k0, second & _LOW
        c2, c3 = (first >> _HALF) ^ c3 ^ k1, first & _LOW
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return np.stack([c0, c1, c2, c3])


class BatchRandom:
    """The random draws of a batch's samples (16-byte ids) in one epoch."""

    def __init__(self, sample_ids: bytes, *, seed: int, epoch: int) -> None:
        # The counter is the sample id, whose 16 bytes fit exactly.
        words = np.frombuffer(sample_ids, dtype="<u4").reshape(-1, ID_BYTES // 4)
        self._counter = np.ascontiguousarray(words.T).astype(np.uint64)[:, None, :]
        self._seed = seed.to_bytes(8, "little", signed=True)
        self._epoch = epoch.to_bytes(8, "little")

    def __len__(self) -> int:
        return int(self._counter.shape[2])

    def bits(self, purpose: str, count: int) -> NDArray[np.uint64]:
        """Return ``count`` draws of 32 bits per sample: uint64 of shape (count, samples)."""
        # Each purpose has its own key, so that turning one operation on does not change the others.
        keys = [
            digest128(purpose.encode(), self._seed, self._epoch, block.to_bytes(8, "little"))[:_KEY_BYTES]
            for block in range(-(-count // _WORDS))
        ]
        key = np.frombuffer(b"".join(keys), dtype="<u4").reshape(-1, 2).T.astype(np.uint64)[:, :, None]
        words = philox4x32(self._counter, key)  # (words, blocks, samples)
        return words.transpose(1, 0, 2).reshape(-1, len(self))[:count]

    def uniform(self, purpose: str, count: int) -> NDArray[np.float64]:
        """Return ``count`` draws per sample from [0, 1): shape (count, samples)."""
        return unit_interval(self.bits(purpose, count))


def unit_interval(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Convert 32-bit draws to numbers from 0 (included) to 1 (excluded)."""
    return bits.astype(np.float64) * 2.0**-32


def below(bits: NDArray[np.uint64], bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Convert 32-bit draws to integers below ``bounds``; the bias is below ``bounds * 2**-32``."""
    return ((bits * bounds.astype(np.uint64)) >> _HALF).astype(np.int64)
