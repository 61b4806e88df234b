"""A store that the function has filled, and nothing that the environment names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from superdl.lambda_prefetch.caches import close_idle_connections
from superdl.super_wire.objects.s3 import close_connections
from superdl.super_wire.store import DirectoryStore
from tests.fixtures.images import write_images
from tests.fixtures.valkey import valkey
from tests.superdl.store.filled import fill

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["valkey"]

COUNT = 40


@dataclass(frozen=True)
class Filled:
    """``packs`` in the order in which they were written: 16, 16 and 8 records."""

    store: DirectoryStore
    images: Path
    packs: list[str]

    @property
    def address(self):
        return self.store.address


@pytest.fixture(autouse=True)
def _a_home_of_its_own(monkeypatch, tmp_path):
    monkeypatch.delenv("SUPER_STORE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache-of-the-user"))
    yield
    close_idle_connections()
    close_connections()


@pytest.fixture
def filled(tmp_path, valkey, monkeypatch):
    images = write_images(tmp_path / "images", COUNT)
    store = DirectoryStore.open(tmp_path / "store", create=True)
    answers = fill(monkeypatch, store.address, images, valkey.unix_url)
    return Filled(store, images, [answer.pack for answer in answers])
