"""Each public name's docstring has an example, and what it says is true: all run in one embedded default."""

from __future__ import annotations

import doctest
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from torch.utils.data import DataLoader

import superdl
from superdl.sampler.embedded.embedded import release_all
from tests.fixtures.images import write_images
from tests.fixtures.torchvision import torchvision_transforms

if TYPE_CHECKING:
    from collections.abc import Iterator

PUBLIC = {name: getattr(superdl, name) for name in superdl.__all__}


@pytest.fixture(scope="module")
def names() -> Iterator[dict[str, object]]:
    """What examples may name, in a folder with eight ``images`` of four classes."""
    folder, patch = Path(tempfile.mkdtemp(prefix="super-x-")), pytest.MonkeyPatch()
    write_images(folder / "images", 8)
    patch.chdir(folder)
    patch.setattr(tempfile, "tempdir", str(folder))  # short: socket paths have 107 bytes
    patch.setenv("TMPDIR", str(folder))
    patch.setenv("SUPER_CACHE_BYTES", "64mb")
    for name in [name for name in os.environ if name.startswith("SUPER_COORDINATOR")]:
        patch.delenv(name)
    yield PUBLIC | {"DataLoader": DataLoader}
    release_all()
    patch.undo()
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", PUBLIC)
def test_its_example_is_true(names: dict[str, object], name: str) -> None:
    if "torchvision import" in str(PUBLIC[name].__doc__) and torchvision_transforms() is None:
        pytest.skip("torchvision is not installed")
    example = doctest.DocTestParser().get_doctest(PUBLIC[name].__doc__, dict(names), name, None, 0)
    assert example.examples, "a public name's docstring shows how it is used"
    told: list[str] = []
    failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=told.append)
    assert not failed, "".join(told)
