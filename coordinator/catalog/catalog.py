"""A source's samples and classes, sorted and immutable. A mapped catalog takes 80 MB per million samples."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from superdl.coordinator.catalog.members import Field, narrowed
from superdl.super_wire import ids
from superdl.super_wire.errors import SourceError
from superdl.super_wire.labels import (
    MAX_CLASS_NAMES_BYTES,
    RaggedLabels,
    label_dtype_of,
    label_sizes,
    labels_text,
    pack_labels,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from superdl.coordinator.catalog.members import Members
    from superdl.coordinator.catalog.strings import PackedStrings
    from superdl.super_wire.labels import Labels

_CHUNK = 8192
_SHOWN = 5


@dataclass(frozen=True, slots=True, eq=False)
class Catalog:
    """The samples of a source, in sorted order. :meth:`build` creates a catalog from unsorted samples."""

    # s3://name, or file:// plus the directory's absolute real path.
    bucket: str
    # Full object keys or, for files, paths below the directory.
    keys: PackedStrings
    # ETags or, for files, size-mtime_ns or digests.
    versions: PackedStrings
    # int64 (indices into classes, or integers) or float64 of shape (samples, ...), a structured dtype of
    # both, or RaggedLabels if list lengths vary by sample. Stored in the smallest dtype that fits, and
    # returned in label_dtype, which uses the notation of superdl.super_wire.labels.
    labels: Labels
    # Empty if labels are not text.
    classes: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    # With an alias, ids and fingerprint are derived from the alias and from keys without the prefix, which
    # all keys have. Without an alias, the prefix is empty.
    alias: str = ""
    prefix: str = ""
    # The locations of samples within objects, or None if each sample is an object. Members of one object
    # share its key and version, and are sorted by offset.
    members: Members | None = None
    # Further parts of each sample, by name.
    fields: tuple[Field, ...] = ()
    # BLAKE2b-128 over bucket, keys, versions, labels, classes, members and fields.
    # Computed, like the fields below, unless the file contains it.
    fingerprint: bytes = b""
    label_dtype: str = ""
    # Size of a returned label in bytes. The mean, rounded up, if list lengths vary.
    label_bytes: int = 0

    def __post_init__(self) -> None:
        columns = self.keys, self.versions, self.labels, self.keys if self.members is None else self.members
        if len(sizes := set(map(len, columns))) > 1:
            raise ValueError(f"the columns of a catalog have different lengths: {sizes}")
        if self.fingerprint:
            return
        object.__setattr__(self, "label_dtype", labels_text(self.labels))
        object.__setattr__(self, "fingerprint", _fingerprint(self))
        mean_bytes = label_dtype_of(self.label_dtype).itemsize
        if isinstance(self.labels, RaggedLabels):
            mean_bytes = -(-int(self.label_sizes().sum()) // max(1, len(self)))
        object.__setattr__(self, "label_bytes", mean_bytes)
        held = self.labels.map(narrowed) if isinstance(self.labels, RaggedLabels) else narrowed(self.labels)
        object.__setattr__(self, "labels", held)

    @classmethod
    def build(
        cls,
        bucket: str,
        keys: PackedStrings,
        versions: PackedStrings,
        labels: Labels,
        classes: Sequence[str] = (),
        warnings: Sequence[str] = (),
        *,
        alias: str = "",
        prefix: str = "",
        members: Members | None = None,
        fields: Sequence[Field] = (),
        sorted_like: PackedStrings | None = None,
        where: str = "",
    ) -> Catalog:
        """Build a catalog from samples in any order, sorting them by key or like ``sorted_like``.

        All keys start with ``prefix``. With ``members``, ``keys`` and ``versions`` have one entry per object,
        in byte order, and ``labels`` has one per member. The rows of ``fields`` are in the same order
        as ``labels``. ``where`` identifies the list of samples in error messages.

        Raises:
            SourceError: the class names do not fit into one message, or a key is repeated.
        """
        names_bytes = sum(len(name.encode()) for name in classes)
        if names_bytes > MAX_CLASS_NAMES_BYTES:
            raise SourceError(
                f"{len(classes)} class names take {names_bytes} bytes, more than {MAX_CLASS_NAMES_BYTES}: "
                "if these are not classes, use a key list with numbers as labels"
            )
        own = Field(ids.MAIN_FIELD, keys, versions, members)
        if members is None:
            order = (keys if sorted_like is None else sorted_like).sort_order()
        else:
            order = members.sort_order()
        own = own.in_order(order)
        if members is None:
            check_unique(own.keys, where or bucket)
        in_order = tuple(field.in_order(order) for field in sorted(fields, key=lambda field: field.name))
        named = tuple(classes), tuple(warnings), alias, prefix if alias else ""
        return cls(bucket, own.keys, own.versions, labels[order], *named, own.members, in_order)

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.keys)

    @property
    def id_bucket(self) -> str:
        """Return the bucket's name in ids, which is its alias if it has one."""
        return ids.id_bucket(self.bucket, self.alias)

    @property
    def whole_bucket(self) -> bool:
        """Return whether this is the only source whose ids contain this bucket."""
        return self.id_bucket.startswith("file:")

    def label_sizes(self, indices: NDArray[np.int64] | slice = slice(None)) -> NDArray[np.int64]:
        """Return each label's size in bytes in ``label_dtype``. By default, ``indices`` covers all labels."""
        return label_sizes(self.labels, self.label_dtype, indices)

    def max_label_bytes(self, count: int, *, may_repeat: bool) -> int:
        """Return the maximum total size of ``count`` labels in bytes. ``may_repeat`` allows duplicates."""
        if not isinstance(self.labels, RaggedLabels):
            return count * self.label_bytes
        sizes = np.sort(self.label_sizes())
        return count * int(sizes[-1]) if may_repeat else int(sizes[-count:].sum())

    def names_at(self, indices: NDArray[np.int64]) -> list[bytes]:
        """Return the samples' display names: the key, plus the member's name if there is one."""
        keys = self.keys.take(indices)
        if self.members is None:
            return keys
        pairs = zip(keys, self.members.names.take(indices), strict=True)
        return [ids.shown_name(key.decode(), name.decode()).encode() for key, name in pairs]

    def labels_at(self, indices: NDArray[np.int64]) -> bytes:
        """Return the labels of the samples at ``indices``, in wire format."""
        return b"".join(pack_labels(self.labels[indices], self.label_dtype))

    def parts(self, names: Sequence[str]) -> list[Field]:
        """Return the main objects and the named fields. Raises ``SourceError`` if a field is missing."""
        by_name = {field.name: field for field in self.fields}
        if missing := [name for name in names if name not in by_name]:
            raise SourceError(
                f"the recipe has the field {missing[0]!r}, but the samples of {self.bucket} have "
                f"{', '.join(by_name) or 'no fields'} besides {ids.MAIN_FIELD}: pass a key_list with the "
                f"column {missing[0]}.key, or {missing[0]}.member, .offset and .length"
            )
        main_field = Field(ids.MAIN_FIELD, self.keys, self.versions, self.members)
        return [main_field, *(by_name[name] for name in names)]

    def part_columns(self, indices: NDArray[np.int64], names: Sequence[str] = ()) -> dict[str, Any]:
        """Return a request's columns (keys, versions, member locations) for ``indices``, part by part."""
        parts = self.parts(names)
        columns: dict[str, Any] = {
            "keys": tuple(key.decode() for part in parts for key in part.keys.take(indices)),
            "versions": tuple(version.decode() for part in parts for version in part.versions.take(indices)),
        }
        if not any(part.members for part in parts):
            return columns
        # In a request with members, a whole object is a member without a name.
        whole = [""] * len(indices), [0] * len(indices), [0] * len(indices), [""] * len(indices)
        by_part = [part.members.at(indices) if part.members else whole for part in parts]
        *locations, encodings = (tuple(chain.from_iterable(column)) for column in zip(*by_part, strict=True))
        columns |= zip(("members", "member_offsets", "member_lengths"), locations, strict=True)
        return columns | {"encodings": encodings if any(encodings) else ()}

    def sample_ids(
        self,
        recipe_digest: bytes,
        randomness: tuple[int, int] | None = None,
        indices: NDArray[np.int64] | None = None,
        fields: Sequence[str] = (),
    ) -> bytes:
        """Return concatenated sample ids of 16 bytes each.

        Args:
            recipe_digest: the recipe's :attr:`superdl.super_wire.recipe.Recipe.digest`.
            randomness: (augment seed, epoch) for a random recipe, otherwise ``None``.
            indices: catalog indices in the requested order, or ``None`` for all samples.
            fields: the recipe's :attr:`superdl.super_wire.recipe.Recipe.beside`.
        """
        parts = self.parts(fields)
        chosen = np.arange(len(self), dtype=np.int64) if indices is None else indices
        # An id takes about half a microsecond.
        packed, skipped = bytearray(), len(self.prefix.encode())
        for start in range(0, len(chosen), _CHUNK):
            chunk = chosen[start : start + _CHUNK]
            (_, keys, versions, members), *others = (_id_columns(part, chunk, skipped) for part in parts)
            packed += ids.sample_ids(
                self.id_bucket, keys, versions, recipe_digest, randomness, members, others
            )
        return bytes(packed)


def check_unique(keys: PackedStrings, where: str) -> None:
    """Raise ``SourceError`` if any keys are repeated, and name a few of them. ``keys`` must be sorted."""
    if repeated := keys.take(np.flatnonzero(keys.equals_next())[:_SHOWN]):
        names = ", ".join(repr(key.decode()) for key in dict.fromkeys(repeated))
        raise SourceError(
            f"{where}: only keys with a member, an offset and a length may be repeated, not {names}"
        )


def _id_columns(part: Field, indices: NDArray[np.int64], skipped: int) -> ids.FieldColumns:
    """Return the columns of a part that ids depend on, omitting the first ``skipped`` bytes of each key."""
    keys, versions = part.keys.take(indices), part.versions.take(indices)
    named = [key[skipped:] for key in keys] if skipped else keys
    return ids.FieldColumns(
        part.name, named, versions, part.members.names.take(indices) if part.members else None
    )


def _fingerprint(catalog: Catalog) -> bytes:
    digest = hashlib.blake2b(digest_size=ids.ID_BYTES)

    def add(content: bytes) -> None:
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)

    parts = catalog.parts([field.name for field in catalog.fields])
    for part in parts:
        if part.name != ids.MAIN_FIELD:
            add(f"field {part.name}".encode())
        if part.members is not None:
            add(b"members")  # no bucket starts with this
    add(catalog.id_bucket.encode())
    for part in parts:
        columns = [(part.keys, len(catalog.prefix.encode())), (part.versions, 0)]
        for strings, skipped in [*columns, (part.members.names, 0)] if part.members else columns:
            _add_strings(digest, strings, skipped)
    for members in filter(None, (part.members for part in parts)):
        numbers = members.offsets.astype("<i8"), members.lengths.astype("<i8"), members.encodings
        for piece in chain((each.tobytes() for each in numbers), map(str.encode, members.row_encodings)):
            add(piece)
    add(catalog.label_dtype.encode())
    _add_labels(digest, catalog.labels, catalog.label_dtype)
    for name in catalog.classes:
        add(name.encode())
    return digest.digest()


def _add_labels(digest: hashlib.blake2b, labels: Labels, dtype: str) -> None:
    if isinstance(labels, RaggedLabels):
        # Each list of varying length is hashed as a field.
        for piece in pack_labels(labels, dtype):
            digest.update(len(piece).to_bytes(8, "little"))
            digest.update(piece)
        return
    digest.update((len(labels) * label_dtype_of(dtype).itemsize).to_bytes(8, "little"))
    for start in range(0, len(labels), _CHUNK):
        digest.update(b"".join(pack_labels(labels[start : start + _CHUNK], dtype)))


def _add_strings(digest: hashlib.blake2b, strings: PackedStrings, skipped: int) -> None:
    """Hash strings, minus their first ``skipped`` bytes, as two fields: the lengths, then the contents."""
    total = 0
    digest.update((8 * len(strings)).to_bytes(8, "little"))
    for chunk in strings.chunks():
        lengths = (np.diff(chunk.parts()[1]) - np.uint64(skipped)).astype("<u8", copy=False)
        digest.update(lengths.tobytes())
        total += int(lengths.sum())
    digest.update(total.to_bytes(8, "little"))
    for chunk in strings.chunks():
        digest.update(b"".join([text[skipped:] for text in chunk]) if skipped else chunk.parts()[0])
