"""Which names are hidden, as bytes and as text."""

from __future__ import annotations

import pytest

from superdl.super_wire.source_url import is_hidden

HIDDEN = (
    ".DS_Store",
    "cat/._1.jpg",
    ".ipynb_checkpoints/1.jpg",
    "__MACOSX/cat/1.jpg",
    "Thumbs.db",
    "a/desktop.ini",
)
SHOWN = (
    "1.jpg",
    "./cat/1.a.jpg",
    "../1.jpg",
    "a//1.jpg",
    "a/",
    "MACOSX/1",
    "Thumbs.db/1.jpg",
    "_1.jpg",
    "\udcff.jpg",
)


@pytest.mark.parametrize("key", HIDDEN + SHOWN)
def test_hidden_names(key):
    content = key.encode("utf-8", "surrogateescape")
    assert is_hidden(key) is is_hidden(content) is (key in HIDDEN)
