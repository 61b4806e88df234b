"""Stores filled by the real function, and a helper that runs ``superdl store``."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from superdl.coordinator.catalog import list_source
from superdl.lambda_prefetch.push import close_idle_connections
from superdl.main import main
from superdl.super_wire.objects.s3 import close_connections
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.request import RequestKind
from superdl.super_wire.store import DirectoryStore
from tests.fixtures.images import SIDE, write_images
from tests.fixtures.valkey import valkey
from tests.lambda_prefetch.prefetching import Context, request_for, run

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["valkey"]

COUNT = 40
RECIPE = Recipe.image(resize=SIDE, crop=SIDE)
_AT_A_TIME = 16


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


def fill(monkeypatch, store, images, cache, recipe=RECIPE):
    """What the function answered, run_store for all images, 16 in a request; one pack is written for each."""
    monkeypatch.setenv("SUPER_STORE", store)
    catalog, answers = list_source(str(images)), []
    samples = list(zip(map(bytes.decode, catalog.keys), map(bytes.decode, catalog.versions), strict=True))
    for at in range(0, len(samples), _AT_A_TIME):
        some = dict(samples[at : at + _AT_A_TIME])
        request = request_for(catalog.bucket, some, cache, recipe)
        answers.append(run(replace(request, kind=RequestKind.DECODE_TO_STORE, store=store), Context()))
    monkeypatch.delenv("SUPER_STORE")
    assert all(answer.pack and not answer.store_trouble for answer in answers), answers
    return answers


def run_store(capsys, *words):
    """The exit code of ``superdl store`` and what it printed as JSON."""
    capsys.readouterr()  # what functions log goes there too
    code = main(["store", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)
