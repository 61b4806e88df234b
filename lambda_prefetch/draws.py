"""Randomness of random steps: draws that depend on the sample and the step, and on nothing else.

A stream is named by (recipe digest, step number, augment seed, epoch, bucket, key), hashed with BLAKE2b as
sample ids are: so it is equal in every process, on every executor and for every job, and fresh in every
epoch. The numbers come from the hash itself, a counter at a time, so no library's change of generator can
change pixels.
"""

from __future__ import annotations

import hashlib

from superdl.super_wire.ids import digest128

__all__ = ["Draws"]

_DOUBLE_BITS = 53


class Draws:
    """A stream of random numbers for one random step on one sample."""

    def __init__(
        self, recipe_digest: bytes, step: int, augment_seed: int, epoch: int, bucket: str, key: str
    ) -> None:
        self._seed = digest128(
            recipe_digest,
            step.to_bytes(8, "little"),
            augment_seed.to_bytes(8, "little", signed=True),
            epoch.to_bytes(8, "little"),
            bucket.encode(),
            key.encode(),
        )
        self._count = 0

    def seed(self) -> int:
        """The next draw as an integer of 63 bits, not negative: a seed for a generator of somebody else's."""
        return self._bits() >> 1

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """The next draw from ``low`` (included) to ``high`` (excluded, but for rounding)."""
        return low + (high - low) * ((self._bits() >> (64 - _DOUBLE_BITS)) * 2.0**-_DOUBLE_BITS)

    def below(self, bound: int) -> int:
        """The next draw from 0 to ``bound - 1``; the bias is below ``bound * 2**-64``."""
        return (self._bits() * bound) >> 64

    def _bits(self) -> int:
        counter = self._count.to_bytes(8, "little")
        self._count += 1
        return int.from_bytes(hashlib.blake2b(counter, digest_size=8, key=self._seed).digest(), "little")
