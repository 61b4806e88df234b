"""Sample ids and batch ids, which every process derives identically."""

from __future__ import annotations

import hashlib
import re
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

ID_BYTES = 16
# Prefix of an alias where it replaces the bucket in ids.
ALIAS_SCHEME = "alias://"
# The name of the main object's field, if a sample has additional fields.
MAIN_FIELD = "image"
MAX_FIELDS = 16

_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST_VERSION = re.compile(rf"([0-9]{{1,19}})-b2:[0-9a-f]{{{2 * ID_BYTES}}}")


# The basis of a file's version: size and modification time, or size and digest.
Versions: TypeAlias = Literal["times", "digests"]


class Naming(NamedTuple):
    """The scheme by which ids name a source's samples, apart from keys. See :func:`checked_naming`."""

    alias: str = ""  # replaces the source's location and makes keys relative to it
    versions: str = ""  # of files: "times" (or empty) or "digests"


class FieldColumns(NamedTuple):
    """An additional field of many samples, with the same columns as the main field in :func:`sample_ids`."""

    name: str
    keys: Iterable[bytes]
    versions: Iterable[bytes]
    members: Iterable[bytes] | None


def checked_field(name: object) -> str:
    """Check and return a field name. Raises ``ConfigError`` if it is invalid."""
    if not isinstance(name, str) or not _FIELD.fullmatch(name) or name == "label":
        raise ConfigError(
            "a field name must consist of 1 to 64 of the characters A-Z, a-z, 0-9 and '_', not begin with a "
            f"digit, and not be 'label'; got {str(name)[:80]!r}"
        )
    return name


def checked_naming(alias: str | None, versions: str | None, where: str = "") -> Naming:
    """Check and return a naming. Raises ``ConfigError``, which begins with ``where``, if it is invalid."""
    if alias is not None and not (isinstance(alias, str) and _ALIAS.fullmatch(alias)):
        raise ConfigError(
            f"{where}an alias must consist of 1 to 64 of the characters A-Z, a-z, 0-9, '.', '_' and '-', and "
            f"begin with a letter or digit; got {str(alias)[:80]!r}"
        )
    if versions is not None and versions not in get_args(Versions):
        raise ConfigError(f"{where}versions must be 'times' or 'digests', not {str(versions)[:80]!r}")
    return Naming(alias or "", versions or "")


def id_bucket(bucket: str, alias: str) -> str:
    """Return a bucket's name in ids: the alias if there is one, otherwise the bucket itself."""
    if alias:
        return f"{ALIAS_SCHEME}{alias}"
    # Omit the Hub's commit: versions of files change only with their contents.
    return bucket.partition("@")[0] if bucket.startswith("hf://") else bucket


def digest_version(size: int, digest: bytes) -> str:
    """Return a file's version based on its content: the file's size and the BLAKE2b-128 of its bytes."""
    return f"{size}-b2:{digest.hex()}"


def size_of_digest(version: str) -> int | None:
    """Return the size in a :func:`digest_version`, or ``None`` for any other version."""
    match = _DIGEST_VERSION.fullmatch(version)
    return int(match[1]) if match else None


def shown_name(key: str, member: str) -> str:
    """Return a member's name for display. The name is ambiguous, so do not parse it."""
    return f"{key}::{member}"


def with_length(field: bytes) -> bytes:
    """Prefix a field with its length, so that different lists of fields stay distinct when joined."""
    return len(field).to_bytes(8, "little") + field


def digest128(*fields: bytes) -> bytes:
    """Return the BLAKE2b-128 digest of fields, each prefixed with its length as 8 little-endian bytes."""
    return hashlib.blake2b(b"".join(map(with_length, fields)), digest_size=ID_BYTES).digest()


def sample_ids(
    bucket: str,
    keys: Iterable[bytes],
    versions: Iterable[bytes],
    recipe_digest: bytes,
    randomness: tuple[int, int] | None = None,
    members: Iterable[bytes] | None = None,
    fields: Sequence[FieldColumns] = (),
) -> bytes:
    """Return the concatenated ids of samples in one bucket, 16 bytes each, in the order of ``keys``.

    Args:
        bucket: ``s3://name``, or ``file://`` and the real path, as returned by :func:`id_bucket`.
        keys: object keys in UTF-8, relative to the source if it has an alias.
        versions: one per key: ETags, or for files ``size-mtime_ns`` or :func:`digest_version`.
        recipe_digest: :attr:`superdl.super_wire.recipe.Recipe.digest`.
        randomness: (augment seed, epoch) for a random recipe, otherwise ``None``.
        members: names of the objects' members, one per key, hashed after the key.
        fields: additional fields, hashed after the version as name, key, member (or "") and version.
    """
    head = hashlib.blake2b(with_length(bucket.encode()), digest_size=ID_BYTES)
    tail = with_length(recipe_digest)
    if randomness is not None:
        augment_seed, epoch = randomness
        tail += with_length(augment_seed.to_bytes(8, "little", signed=True))
        tail += with_length(epoch.to_bytes(8, "little"))
    ids = []
    # Members, randomness and extra fields each change the number of hashed fields, so ids of
    # different kinds cannot collide.
    encoded = repeat(b"") if members is None else map(with_length, members)
    tails = map(b"".join, zip(*map(_framed, fields), repeat(tail), strict=False)) if fields else repeat(tail)
    for (key, version), member, tail in zip(zip(keys, versions, strict=True), encoded, tails, strict=False):
        # Hash the bucket only once.
        state = head.copy()
        state.update(
            len(key).to_bytes(8, "little")
            + key
            + member
            + len(version).to_bytes(8, "little")
            + version
            + tail
        )
        ids.append(state.digest())
    return b"".join(ids)


def _framed(field: FieldColumns) -> Iterator[bytes]:
    name = with_length(field.name.encode())
    members = repeat(b"") if field.members is None else field.members
    for (key, version), member in zip(zip(field.keys, field.versions, strict=True), members, strict=False):
        yield name + with_length(key) + with_length(member) + with_length(version)


def batch_ids(ids: bytes, offsets: Sequence[int]) -> list[bytes]:
    """Return the ids of consecutive batches: the BLAKE2b-128 of their length-prefixed sample ids, in order.

    ``offsets`` contains the start of each batch, in samples, and the end of the last one.
    """
    import numpy as np  # not needed by processes that only start others

    count = len(ids) // ID_BYTES
    framed = np.empty((count, 8 + ID_BYTES), dtype=np.uint8)
    framed[:, :8] = np.frombuffer(ID_BYTES.to_bytes(8, "little"), dtype=np.uint8)
    framed[:, 8:] = np.frombuffer(ids, dtype=np.uint8).reshape(count, ID_BYTES)
    return [
        hashlib.blake2b(framed[first:end].data, digest_size=ID_BYTES).digest()
        for first, end in pairwise(offsets)
    ]


def split_ids(ids: bytes) -> list[bytes]:
    """Split concatenated 16-byte ids. Raises ``ValueError`` if the length is not a multiple of 16."""
    if len(ids) % ID_BYTES:
        raise ValueError(f"{len(ids)} bytes are not a whole number of {ID_BYTES}-byte ids")
    return [ids[at : at + ID_BYTES] for at in range(0, len(ids), ID_BYTES)]
