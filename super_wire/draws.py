"""Epochs that repeat, skip or weight samples, and how their draws are packed into messages."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from superdl.super_wire.errors import ConfigError
from superdl.super_wire.ids import digest128

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

NUMBERS_MAX: Final = 2**24
# Limit for packed indices and weights together, below the 4 MiB of a message.
DRAWS_BYTES_MAX: Final = 4 * 2**20 - 2**16
# Indices in each message of an order.
ORDER_PART: Final = 2**18
REPEATS_MAX: Final = 1024
_DRAWS_MAX: Final = 2**40
_NUMBER_BYTES: Final = 8
_PLAIN, _DIFFERENCES = b"=", b"+"


@dataclass(frozen=True, slots=True)
class Draws:
    """An epoch's draws, as little-endian numbers. If empty, each sample is drawn once."""

    indices: bytes = b""  # int64, catalog indices; each occurrence is a draw
    weights: bytes = b""  # float64, one per index, or one per sample without indices
    count: int = 0  # draws by weight in an epoch; 0 without weights
    repeats: int = 1  # how often each draw is repeated in a row
    lengths: bytes = b""  # int64, lengths of one epoch's batches, whose samples are the indices

    @classmethod
    def of(
        cls,
        indices: Any,
        weights: Any,
        *,
        count: int | None,
        repeats: int,
        shuffle: bool,
    ) -> Self:
        """Create draws from a user's lists, arrays or tensors. Raises ``ConfigError`` if they are invalid.

        With ``shuffle``, the order of the indices has no effect. The coordinator checks that the draws
        fit the dataset.
        """
        if count is not None and weights is None:
            raise ConfigError("draws is the number of draws by weight in an epoch: pass weights too")
        drawn = None if indices is None else _array("indices", indices, "iu", "<i8")
        shares = None if weights is None else _array("weights", weights, "iuf", "<f8")
        if shares is not None:
            count = shares.size if count is None else count
            if drawn is not None and shares.size != drawn.size:
                raise ConfigError(
                    f"weights must have one number for each of the {drawn.size:,} indices, not "
                    f"{shares.size:,} numbers"
                )
        if drawn is not None and shuffle:
            # Sorted draws are smaller when packed, and equal draws have equal digests.
            order = np.argsort(drawn, kind="stable")
            drawn, shares = drawn[order], None if shares is None else shares[order]
        indices, weights = (b"" if array is None else array.tobytes() for array in (drawn, shares))
        return cls(indices, weights, count or 0, repeats)

    @classmethod
    def in_order(cls, indices: Any, lengths: Any) -> Self:
        """Create draws from the concatenated indices of an epoch's batches, and the batches' lengths."""
        order, ends = (np.asarray(numbers).astype("<i8").tobytes() for numbers in (indices, lengths))
        return cls(order, lengths=ends)

    @classmethod
    def unpacked(
        cls, indices: bytes, weights: bytes, count: int, repeats: int, lengths: bytes = b""
    ) -> Self | None:
        """Unpack draws from a message. Returns ``None`` if each sample is drawn once."""
        repeats = repeats or 1
        if not (indices or weights or count) and repeats == 1:
            return None
        if repeats > REPEATS_MAX or count > _DRAWS_MAX or bool(count) is not bool(weights):
            raise ConfigError(
                f"invalid draws: {count} by {len(weights)} bytes of weights, each repeated {repeats} times"
            )
        if lengths and (weights or repeats > 1 or not indices):
            raise ConfigError(
                "batches with lengths need the order of their samples, without weights or repeats"
            )
        indices, weights, lengths = (
            unpack_numbers(packed) if packed else b"" for packed in (indices, weights, lengths)
        )
        return cls(indices, weights, count, repeats, lengths)

    def packed(self) -> tuple[bytes, bytes]:
        """Pack indices and weights for a message. Raises ``ConfigError`` if they are too large."""
        indices, weights = (
            pack_numbers(numbers) if numbers else b"" for numbers in (self.indices, self.weights)
        )
        if len(indices) + len(weights) > DRAWS_BYTES_MAX:
            raise ConfigError(
                f"the sampler's packed indices and weights have {len(indices) + len(weights):,} bytes, "
                f"more than the {DRAWS_BYTES_MAX:,} that a coordinator accepts: round the weights to fewer "
                "distinct values, or use a key list"
            )
        return indices, weights

    def packed_order(self) -> Iterator[tuple[int, bytes]]:
        """Yield the packed indices in parts that fit into messages, each with its starting position."""
        for start in range(0, len(self.indices), ORDER_PART * _NUMBER_BYTES):
            yield (
                start // _NUMBER_BYTES,
                pack_numbers(self.indices[start : start + ORDER_PART * _NUMBER_BYTES]),
            )

    @property
    def digest(self) -> bytes:
        """The 16-byte digest of these draws."""
        fields = (self.indices, self.weights, f"{self.count},{self.repeats}".encode())
        return digest128(*fields, *([self.lengths] if self.lengths else []))

    @property
    def index_array(self) -> NDArray[np.int64] | None:
        """The indices, or ``None`` for all samples."""
        return np.frombuffer(self.indices, dtype="<i8") if self.indices else None

    @property
    def weight_array(self) -> NDArray[np.float64] | None:
        """The weights, or ``None`` if there are none."""
        return np.frombuffer(self.weights, dtype="<f8") if self.weights else None

    @property
    def length_array(self) -> NDArray[np.int64]:
        """The lengths of the batches, empty if the batch size determines them."""
        return np.frombuffer(self.lengths, dtype="<i8")

    def length(self, size: int) -> int:
        """Return the number of draws in an epoch, given a dataset of ``size`` samples."""
        drawn = self.count or len(self.indices) // _NUMBER_BYTES or size
        return drawn * self.repeats


def _array(name: str, values: Any, kinds: str, dtype: str) -> NDArray[Any]:
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{name} must be a flat list or array of numbers: {error}") from error
    if array.ndim == 1 and not array.size:
        raise ConfigError(f"{name} are empty, so an epoch would have no samples")
    if array.ndim != 1 or array.dtype.kind not in kinds or not 1 <= array.size <= NUMBERS_MAX:
        actual = type(values).__name__ if array.dtype == object else f"{array.dtype} of shape {array.shape}"
        numbers = "numbers" if "f" in kinds else "integers"
        raise ConfigError(f"{name} must be a list or array of 1 to {NUMBERS_MAX:,} {numbers}, not {actual}")
    return array.astype(dtype, copy=False)


def pack_numbers(numbers: bytes) -> bytes:
    """Pack little-endian 8-byte numbers as deflated byte planes, delta-encoded first if they ascend."""
    values = np.frombuffer(numbers, dtype="<i8")
    ascending = bool((values[1:] >= values[:-1]).all()) and int(values[0]) >= 0
    if ascending:
        values = np.diff(values, prepend=0)
    # For small numbers and repeated weights, most planes are zeros.
    planes = values.view(np.uint8).reshape(-1, _NUMBER_BYTES).T
    return (_DIFFERENCES if ascending else _PLAIN) + zlib.compress(planes.tobytes(), 6)


def unpack_numbers(packed: bytes) -> bytes:
    """Reverse :func:`pack_numbers`. Raises ``ConfigError`` for invalid bytes or too many numbers."""
    decompressor = zlib.decompressobj()
    try:
        planes = decompressor.decompress(packed[1:], NUMBERS_MAX * _NUMBER_BYTES + 1)
    except zlib.error as error:
        raise ConfigError(f"indices or weights cannot be unpacked: {error}") from error
    form, excess = packed[:1], len(planes) % _NUMBER_BYTES
    if form not in (_PLAIN, _DIFFERENCES) or not decompressor.eof or not planes or excess:
        raise ConfigError(f"indices or weights must be 1 to {NUMBERS_MAX:,} packed numbers of 8 bytes each")
    values = np.ascontiguousarray(np.frombuffer(planes, dtype=np.uint8).reshape(_NUMBER_BYTES, -1).T)
    numbers = values.view("<i8").reshape(-1)
    return (np.cumsum(numbers) if form == _DIFFERENCES else numbers).astype("<i8").tobytes()
