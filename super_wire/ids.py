"""Sample ids and batch ids: content addresses that every process derives alike.

An id is BLAKE2b-128 over its fields, each field preceded by its length as 8 little-endian bytes, so that no
two different lists of fields give the same input.
"""

from __future__ import annotations

import hashlib
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["ID_BYTES", "batch_id", "batch_ids", "digest128", "sample_id", "sample_ids", "split_ids"]

ID_BYTES = 16
"""Length of a sample id, batch id or digest, in bytes."""


def _with_length(field: bytes) -> bytes:
    return len(field).to_bytes(8, "little") + field


def digest128(*fields: bytes) -> bytes:
    """BLAKE2b-128 over length-prefixed fields: 16 bytes, equal on every platform and in every process."""
    return hashlib.blake2b(b"".join(map(_with_length, fields)), digest_size=ID_BYTES).digest()


def sample_ids(
    bucket: str,
    keys: Iterable[bytes],
    versions: Iterable[bytes],
    recipe_digest: bytes,
    randomness: tuple[int, int] | None = None,
) -> bytes:
    """Ids of many samples of one bucket, concatenated: 16 bytes each, in the order of ``keys``.

    Args:
        bucket: ``s3://name`` or ``file://`` and the directory's absolute real path.
        keys: full object keys, UTF-8.
        versions: ETag, or ``size-mtime_ns`` for files; as many as there are keys.
        recipe_digest: :attr:`superdl.super_wire.Recipe.digest`.
        randomness: (augment seed, epoch) if the recipe is random, else ``None``.
    """
    head = hashlib.blake2b(_with_length(bucket.encode()), digest_size=ID_BYTES)
    tail = _with_length(recipe_digest)
    if randomness is not None:
        augment_seed, epoch = randomness
        tail += _with_length(augment_seed.to_bytes(8, "little", signed=True))
        tail += _with_length(epoch.to_bytes(8, "little"))
    ids = []
    for key, version in zip(keys, versions, strict=True):
        state = head.copy()
        state.update(
            len(key).to_bytes(8, "little") + key + len(version).to_bytes(8, "little") + version + tail
        )
        ids.append(state.digest())
    return b"".join(ids)


def sample_id(
    bucket: str, key: str, version: str, recipe_digest: bytes, randomness: tuple[int, int] | None = None
) -> bytes:
    """The id of one sample; see :func:`sample_ids`."""
    return sample_ids(bucket, [key.encode()], [version.encode()], recipe_digest, randomness)


def batch_id(ids: bytes) -> bytes:
    """The id of a batch: BLAKE2b-128 over its ordered sample ids (concatenated, 16 bytes each)."""
    return digest128(*split_ids(ids))


def batch_ids(ids: bytes, offsets: Sequence[int]) -> list[bytes]:
    """The ids of consecutive batches, a fifth of the time of one after the other.

    Args:
        ids: sample ids of all batches, concatenated.
        offsets: one more than there are batches, in samples: where each begins, and the last one's end.
    """
    count = len(ids) // ID_BYTES
    framed = np.empty((count, 8 + ID_BYTES), dtype=np.uint8)
    framed[:, :8] = np.frombuffer(ID_BYTES.to_bytes(8, "little"), dtype=np.uint8)
    framed[:, 8:] = np.frombuffer(ids, dtype=np.uint8).reshape(count, ID_BYTES)
    return [
        hashlib.blake2b(framed[first:end].data, digest_size=ID_BYTES).digest()
        for first, end in pairwise(offsets)
    ]


def split_ids(ids: bytes) -> list[bytes]:
    """Concatenated ids as a list of 16-byte ids; ``ValueError`` if the length is no multiple of 16."""
    if len(ids) % ID_BYTES:
        raise ValueError(f"{len(ids)} bytes are no whole number of {ID_BYTES}-byte ids")
    return [ids[at : at + ID_BYTES] for at in range(0, len(ids), ID_BYTES)]
