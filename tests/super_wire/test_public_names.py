"""Public names exist, and the package's face holds what users and siblings build on."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

from superdl import super_wire

MODULES = [
    f"super_wire.{entry.name}"
    for entry in pkgutil.iter_modules(super_wire.__path__)
    if "_pb2" not in entry.name
]


@pytest.mark.parametrize("name", ["super_wire", *MODULES])
def test_public_names_exist(name):
    module = importlib.import_module(name)
    assert all(hasattr(module, public) for public in module.__all__)
    assert len(set(module.__all__)) == len(module.__all__)


def test_the_face_of_the_package():
    assert sorted(super_wire.__all__) == [
        "BatchRef", "Limits", "Outcome", "PrefetchRequest", "PrefetchResult", "ReadReport", "Recipe",
        "batch_id", "sample_id",
    ]  # fmt: skip
