"""A keyed, invertible permutation of ``range(size)``, computed and never stored. A
shuffle, no encryption.

After Black and Rogaway, "Ciphers with Arbitrary Finite Domains" (CT-RSA 2002). It
depends on integer arithmetic modulo 2**64 and on BLAKE2b only: users rely on the order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import numpy as np

from superdl.super_wire.errors import PlanError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from superdl.coordinator.core.samples import Ints

SIZE_MAX: Final = 2**40  # the largest supported (and tested) size; more needs wider hashes in the rounds
PREFIX_SIZE_MAX: Final = 256  # up to this size the permutation is a small table; above, a Feistel network
KEY_BYTES_MAX: Final = 64  # the longest key that BLAKE2b takes
_ROUNDS: Final = 8
# Chi-squared tests over neighbours, and positions one radix apart, see 4 rounds and not 6.
_BLOCK: Final = 8192  # values per pass: its five arrays fit into a core's own cache
_WORDS_PER_DIGEST: Final = 8

# The multipliers of splitmix64's finaliser (Steele, Lea and Flood, OOPSLA 2014).
_MULTIPLIER_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_2: Final = np.uint64(0x94D049BB133111EB)
_HALF: Final = np.uint64(32)


@dataclass(frozen=True)
class Permutation:
    """A bijection of ``range(size)``, chosen by ``key``: equal on every machine and
    in every release.

    ``PlanError``: not 1 to `SIZE_MAX` elements, or not 1 to `KEY_BYTES_MAX` bytes of key.
    """

    size: int
    key: bytes
    _cipher: _PrefixCipher | _FeistelCipher = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 1 <= self.size <= SIZE_MAX:
            raise PlanError(f"a permutation needs a size of 1 to {SIZE_MAX}, not {self.size}")
        if not 1 <= len(self.key) <= KEY_BYTES_MAX:
            raise PlanError(f"a permutation needs a key of 1 to {KEY_BYTES_MAX} bytes, not {len(self.key)}")
        # A Feistel network on few elements has too few states to mix well.
        cipher = _PrefixCipher if self.size <= PREFIX_SIZE_MAX else _FeistelCipher
        object.__setattr__(self, "_cipher", cipher(self.size, self.key))

    def forward(self, positions: Ints) -> Ints:
        """Return the element at each position, int64 of its shape; ``PlanError`` if one is out of range."""
        return self._cipher.apply(checked_elements(positions, "positions", self.size), decrypt=False)

    def inverse(self, indices: Ints) -> Ints:
        """Return the position of each element, int64 of its shape; ``PlanError`` if one is out of range."""
        return self._cipher.apply(checked_elements(indices, "indices", self.size), decrypt=True)


@lru_cache(maxsize=64)  # two epochs of 32 jobs; an entry has at most 4 KiB
def order_of(size: int, seed: int, epoch: int) -> Permutation:
    """Return the order of one epoch; its key is BLAKE2b over seed and epoch."""
    return Permutation(size, epoch_key(b"super-plan-1", seed, epoch))


def epoch_key(purpose: bytes, seed: int, epoch: int) -> bytes:
    """Return 32 bytes that are unique to a purpose, seed and epoch."""
    fields = seed.to_bytes(16, "little", signed=True) + epoch.to_bytes(16, "little")
    return blake2b(fields, digest_size=32, person=purpose).digest()


def checked_elements(values: Ints, name: str, size: int) -> Ints:
    """Return ``values`` as int64, copied only if needed; ``PlanError``, which calls them ``name``."""
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise PlanError(f"{name} must be integers, not {array.dtype}")
    signed = array.astype(np.int64, copy=False)
    # Seen as unsigned, a negative value is a huge one: one pass finds both.
    if signed.size and int(signed.view(np.uint64).max()) >= size:
        raise PlanError(f"{name} must be in range({size}), but go from {array.min()} to {array.max()}")
    return signed


class _PrefixCipher:
    """A table: the positions, sorted by keyed random words."""

    def __init__(self, size: int, key: bytes) -> None:
        elements = np.argsort(_keyed_words(key, size, size), kind="stable").astype(np.int64)
        self._tables = elements, np.argsort(elements, kind="stable").astype(np.int64)

    def apply(self, values: Ints, *, decrypt: bool) -> Ints:
        return self._tables[decrypt][values]


class _FeistelCipher:
    """A generalised Feistel network on pairs of digits, with cycle walking."""

    def __init__(self, size: int, key: bytes) -> None:
        # The product of the radices exceeds size by less than the left radix:
        # hardly any value leaves the range.
        left_radix = math.isqrt(size - 1) + 1
        self._size = size
        self._left_radix = np.uint64(left_radix)
        self._right_radix = np.uint64(-(-size // left_radix))
        self._round_keys = tuple(_keyed_words(key, size, _ROUNDS))

    def apply(self, values: Ints, *, decrypt: bool) -> Ints:
        # This ends: a value lies on a cycle of the network's bijection, and that cycle holds at least the
        # value itself, which is in range, and fewer than `left_radix` values that are not.
        # Fresh and contiguous, so that reshape gives a view: work in place must reach `walked`.
        walked = np.array(values, dtype=np.uint64, order="C")
        flat = walked.reshape(-1)
        self._apply(flat, decrypt=decrypt)
        outside = np.flatnonzero(flat >= self._size)
        while outside.size:
            again = flat[outside]
            self._apply(again, decrypt=decrypt)
            flat[outside] = again
            outside = outside[again >= self._size]
        return walked.view(np.int64)

    def _apply(self, values: NDArray[np.uint64], *, decrypt: bool) -> None:
        scratch = np.empty((4, min(values.size, _BLOCK)), dtype=np.uint64)
        for start in range(0, values.size, _BLOCK):
            block = values[start : start + _BLOCK]
            self._apply_block(block, scratch[:, : block.size], decrypt=decrypt)

    def _apply_block(self, block: NDArray[np.uint64], scratch: NDArray[np.uint64], *, decrypt: bool) -> None:
        left, right, hashed, other = scratch
        np.floor_divide(block, self._right_radix, out=left)
        np.multiply(left, self._right_radix, out=right)
        np.subtract(block, right, out=right)

        rounds = range(_ROUNDS)
        for number in reversed(rounds) if decrypt else rounds:
            if number % 2 == 0:
                target, source, radix = left, right, self._left_radix
            else:
                target, source, radix = right, left, self._right_radix
            _hash(source, self._round_keys[number], radix, hashed, other)
            # Sum and difference modulo the radix, without a branch. Arithmetic is modulo 2**64, so of the
            # value and the value moved by one radix, the wrong one is always the larger.
            if decrypt:
                np.subtract(target, hashed, out=target)
                np.add(target, radix, out=other)
            else:
                np.add(target, hashed, out=target)
                np.subtract(target, radix, out=other)
            np.minimum(target, other, out=target)

        np.multiply(left, self._right_radix, out=block)
        np.add(block, right, out=block)


def _keyed_words(key: bytes, size: int, count: int) -> NDArray[np.uint64]:
    """Return ``count`` uint64 words that look random: BLAKE2b of size and counter, under the key."""
    # The size is in them because nearby sizes have equal radices, and would have all but equal orders.
    digests = -(-count // _WORDS_PER_DIGEST)
    prefix = size.to_bytes(8, "little")
    stream = b"".join(
        blake2b(prefix + counter.to_bytes(8, "little"), key=key, person=b"super-perm-1").digest()
        for counter in range(digests)
    )
    return np.frombuffer(stream, dtype="<u8", count=count).astype(np.uint64)


def _hash(
    digits: NDArray[np.uint64],
    round_key: np.uint64,
    radix: np.uint64,
    hashed: NDArray[np.uint64],
    other: NDArray[np.uint64],
) -> None:
    """Write a keyed hash of each digit, in ``range(radix)``, to ``hashed``; ``other`` is scratch."""
    np.bitwise_xor(digits, round_key, out=hashed)
    np.multiply(hashed, _MULTIPLIER_1, out=hashed)
    np.right_shift(hashed, _HALF, out=other)
    np.bitwise_xor(hashed, other, out=hashed)
    np.multiply(hashed, _MULTIPLIER_2, out=hashed)
    # The upper 32 bits as a fraction of one, times the radix (Lemire 2019): no division.
    np.right_shift(hashed, _HALF, out=hashed)
    np.multiply(hashed, radix, out=hashed)
    np.right_shift(hashed, _HALF, out=hashed)
