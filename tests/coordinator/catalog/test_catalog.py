"""A catalog is sorted by key bytes, and its fingerprint covers its content."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.coordinator.catalog.catalog import Catalog
from superdl.coordinator.catalog.strings import PackedStrings
from superdl.super_wire.errors import SourceError
from superdl.super_wire.labels import MAX_CLASS_NAMES_BYTES

KEYS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12), unique=True)


def catalog_of(keys, *, bucket="s3://b", versions=None, labels=None, classes=("x", "y")):
    """Build a catalog of ``keys``, by default with versions v0, v1, ... and labels 0, 1, 2, ..."""
    names = versions or [f"v{i}" for i in range(len(keys))]
    return Catalog.build(
        bucket,
        PackedStrings.pack(key.encode() for key in keys),
        PackedStrings.pack(name.encode() for name in names),
        np.arange(len(keys), dtype=np.int64) if labels is None else labels,
        classes,
    )


@given(KEYS)
def test_a_catalog_is_sorted_by_key_bytes_with_its_rows_together(keys):
    catalog = catalog_of(keys)
    assert list(catalog.keys) == sorted(key.encode() for key in keys)
    place = {key.encode(): i for i, key in enumerate(keys)}
    assert catalog.labels.tolist() == [place[key] for key in catalog.keys]
    assert list(catalog.versions) == [b"v%d" % place[key] for key in catalog.keys]
    assert len(catalog) == len(keys)
    assert catalog.label_dtype == "int64"


@pytest.mark.parametrize(
    "change",
    [
        {"keys": ["a", "d"]},
        {"keys": ["ac", ""]},
        {"bucket": "s3://c"},
        {"versions": ["v0", "v2"]},
        {"versions": ["v0v", "1"]},
        {"labels": np.array([0, 2])},
        {"labels": np.array([0.0, 1.0])},
        {"classes": ("x", "z")},
        {"classes": ("xy",)},
    ],
    ids=repr,
)
def test_any_change_changes_the_fingerprint(change):
    same = {"keys": ["a", "c"]}
    assert catalog_of(**same).fingerprint == catalog_of(**same).fingerprint
    assert catalog_of(**same | change).fingerprint != catalog_of(**same).fingerprint


def test_the_fingerprint_is_what_earlier_versions_computed():
    packed = PackedStrings.pack([b"a", b"b"])
    here = Catalog.build("s3://b", packed, packed, np.array([0, 1]), ("x", "y")).fingerprint
    # Spelled out by hand: each field is preceded by its length.
    fields = [
        b"s3://b",
        *(b"\1\0\0\0\0\0\0\0" * 2, b"ab") * 2,
        b"int64",
        bytes(8) + b"\1" + bytes(7),
        b"x",
        b"y",
    ]
    by_hand = hashlib.blake2b(b"".join(len(f).to_bytes(8, "little") + f for f in fields), digest_size=16)
    assert here == by_hand.digest()


def test_class_names_too_long_for_a_message_are_refused():
    with pytest.raises(SourceError, match="2 class names"):
        catalog_of(["a", "b"], classes=("x" * MAX_CLASS_NAMES_BYTES, "y"))


@pytest.mark.parametrize(
    ("labels", "itemsize"),
    [
        (np.array([0, 255]), 1),
        (np.array([0, 256]), 2),
        (np.array([2**16]), 4),
        (np.array([2**32]), 8),
        (np.array([-1, 3]), 8),
        (np.array([0.5, 1.0]), 8),
        (np.array([[1, 2], [3, 400]]), 4),
        (np.array([(1, [1, 2])], dtype=[("a", "i8"), ("b", "f8", (2,))]), 24),
    ],
    ids=repr,
)
def test_labels_are_stored_in_the_smallest_dtype_and_returned_unchanged(labels, itemsize):
    catalog = catalog_of([str(number) for number in range(len(labels))], labels=labels)
    assert catalog.labels.nbytes == itemsize * len(labels)
    assert catalog.label_bytes * len(labels) == labels.nbytes
    assert catalog.labels_at(np.arange(len(labels))[::-1]) == labels[::-1].tobytes()
