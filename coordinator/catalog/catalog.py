"""``Catalog``: the immutable list of a source's samples, sorted by key bytes, and its classes.

A million samples cost some thirty megabytes (:mod:`superdl.coordinator.catalog.strings`) and no object each.
How a source is listed is :mod:`superdl.coordinator.catalog.lister`'s; which samples form a batch is
:mod:`superdl.coordinator.core.plan`'s.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from superdl.coordinator.catalog.members import narrowed
from superdl.coordinator.catalog.strings import RepeatedStrings, Strings, compact
from superdl.super_wire import ids
from superdl.super_wire.errors import SourceError
from superdl.super_wire.label_dtype import label_dtype_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from superdl.coordinator.catalog.members import Members
    from superdl.coordinator.catalog.strings import PackedStrings

__all__ = ["MAX_CLASS_NAMES_BYTES", "Catalog"]

MAX_CLASS_NAMES_BYTES = 2**21
"""Class names travel in one gRPC message, which holds 4 MiB unless set otherwise."""

_AT_A_TIME = 8192


@dataclass(frozen=True, slots=True, eq=False)
class Catalog:
    """The samples of a source; make one with :meth:`build`, which sorts them.

    ``bucket`` is ``s3://name`` or ``file://`` and the directory's absolute real path; ``keys`` are full
    object keys (of files: paths below the directory); ``versions`` ETags, or ``size-mtime_ns`` of files, or
    their digests. With an ``alias``, ids and fingerprint are made of that and of keys without ``prefix``,
    which begins them all; without one, ``prefix`` is empty.
    ``labels`` are int64 (places in ``classes``, or integers) or float64 of shape (samples, ...), or of a
    structured dtype of both. They are held in the smallest dtype that takes their numbers, and given out in
    their own by :meth:`labels_at`. ``classes`` is empty where no label is a text.
    ``members`` say where in their objects samples lie; ``None`` where each sample is an object. With them,
    samples of one object have one key and version, and are sorted by offset.
    """

    bucket: str
    keys: Strings
    versions: Strings
    labels: NDArray[Any]
    classes: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    alias: str = ""
    prefix: str = ""
    members: Members | None = None
    fingerprint: bytes = field(init=False)
    """BLAKE2b-128 over bucket, keys, versions, labels, classes and members: equal content, equal
    fingerprint.
    """
    _dtype: np.dtype[Any] = field(init=False)

    def __post_init__(self) -> None:
        if len(self.labels) != len(self.keys) or len(self.versions) != len(self.keys):
            raise ValueError(
                f"a catalog has one version and one label for each key; not {len(self.keys)} keys, "
                f"{len(self.versions)} versions and labels of shape {self.labels.shape}"
            )
        if self.members is not None and len(self.members) != len(self.keys):
            raise ValueError(f"a catalog has {len(self.keys)} samples, and {len(self.members)} members")
        object.__setattr__(self, "_dtype", self.labels.dtype)
        object.__setattr__(self, "fingerprint", _fingerprint(self))
        object.__setattr__(self, "labels", narrowed(self.labels))
        object.__setattr__(self, "keys", compact(self.keys))
        object.__setattr__(self, "versions", compact(self.versions))

    @classmethod
    def build(
        cls,
        bucket: str,
        keys: PackedStrings,
        versions: PackedStrings,
        labels: NDArray[Any],
        classes: Sequence[str] = (),
        warnings: Sequence[str] = (),
        *,
        alias: str = "",
        prefix: str = "",
        members: Members | None = None,
    ) -> Catalog:
        """Sort samples given in any order. ``prefix`` begins all keys.

        With ``members``, a key and a version for each of their objects, and a label for each of them.

        Raises:
            SourceError: the class names do not fit into one message.
            ValueError: a key is there twice.
        """
        names_bytes = sum(len(name.encode()) for name in classes)
        if names_bytes > MAX_CLASS_NAMES_BYTES:
            raise SourceError(
                f"{len(classes)} class names have {names_bytes} bytes, more than {MAX_CLASS_NAMES_BYTES}: "
                "if these are no classes, give labels as numbers in a key list"
            )
        order = keys.sort_order()
        ordered = keys.reorder(order)
        if ordered.equals_next().any():
            raise ValueError(f"{bucket}: a catalog lists every key once")
        named = tuple(classes), tuple(warnings), alias, prefix if alias else ""
        if members is None:
            return cls(bucket, ordered, versions.reorder(order), labels[order], *named)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        members = replace(members, objects=place[members.objects])
        order_of_members = members.sort_order()
        members = members.reorder(order_of_members)
        shared_keys = RepeatedStrings(ordered, members.objects)
        shared_versions = RepeatedStrings(versions.reorder(order), members.objects)
        return cls(bucket, shared_keys, shared_versions, labels[order_of_members], *named, members)

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.keys)

    @property
    def id_bucket(self) -> str:
        """What stands for the bucket in ids."""
        return ids.id_bucket(self.bucket, self.alias)

    @property
    def whole_bucket(self) -> bool:
        """Whether no other source has ids of the same bucket: it is a directory without an alias."""
        return self.id_bucket.startswith("file:")

    @property
    def label_dtype(self) -> str:
        """What a label is, as :mod:`superdl.super_wire.label_dtype` writes it."""
        return label_dtype_text(self._dtype, self.labels.shape[1:])

    @property
    def label_bytes(self) -> int:
        """Bytes of a label that is given out."""
        return self._dtype.itemsize * math.prod(self.labels.shape[1:])

    def names_at(self, places: NDArray[np.int64]) -> list[bytes]:
        """How people are shown the samples at places of the catalog: by keys, and members if they are."""
        keys = self.keys.take(places)
        if self.members is None:
            return keys
        pairs = zip(keys, self.members.names.take(places), strict=True)
        return [ids.shown_name(key.decode(), name.decode()).encode() for key, name in pairs]

    def labels_at(self, places: NDArray[np.int64]) -> NDArray[Any]:
        """The labels at places of the catalog, in their dtype: shape (places, ...)."""
        return self.labels[places].astype(self._dtype)

    def sample_ids(
        self,
        recipe_digest: bytes,
        randomness: tuple[int, int] | None = None,
        indices: NDArray[np.int64] | None = None,
    ) -> bytes:
        """Sample ids, concatenated, 16 bytes each.

        Args:
            recipe_digest: :attr:`superdl.super_wire.recipe.Recipe.digest`.
            randomness: (augment seed, epoch) of a random recipe, else ``None``.
            indices: places in the catalog, in the order wanted; ``None``: all. About half a microsecond each.
        """
        places = np.arange(len(self), dtype=np.int64) if indices is None else indices
        packed, skipped = bytearray(), len(self.prefix.encode())
        for start in range(0, len(places), _AT_A_TIME):
            some = places[start : start + _AT_A_TIME]
            keys, versions = self.keys.take(some), self.versions.take(some)
            named = [key[skipped:] for key in keys] if skipped else keys
            members = self.members.names.take(some) if self.members else None
            packed += ids.sample_ids(self.id_bucket, named, versions, recipe_digest, randomness, members)
        return bytes(packed)


def _fingerprint(catalog: Catalog) -> bytes:
    digest = hashlib.blake2b(digest_size=ids.ID_BYTES)

    def add(content: bytes) -> None:
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)

    columns = [(catalog.keys, len(catalog.prefix.encode())), (catalog.versions, 0)]
    if catalog.members is not None:
        add(b"members")  # no bucket begins so
        columns.append((catalog.members.names, 0))
    add(catalog.id_bucket.encode())
    for strings, skipped in columns:
        lengths = strings.lengths() - skipped
        add(lengths.astype("<u8", copy=False).tobytes())
        digest.update(int(lengths.sum()).to_bytes(8, "little"))
        for start in range(0, len(strings), _AT_A_TIME):
            some = strings.slice(start, start + _AT_A_TIME)
            digest.update(b"".join([text[skipped:] for text in some] if skipped else some))
    if catalog.members is not None:
        add(catalog.members.offsets.astype("<i8").tobytes())
        add(catalog.members.lengths.astype("<i8").tobytes())
        add(catalog.members.encodings.tobytes())
        for encoding in catalog.members.row_encodings:
            add(encoding.encode())
    add(catalog.label_dtype.encode())
    add(catalog.labels.astype(catalog.labels.dtype.newbyteorder("<"), copy=False).tobytes())
    for name in catalog.classes:
        add(name.encode())
    return digest.digest()
