"""A real run, whose name is an attack, for tests of pages."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from PIL import Image
from rich.console import Console

from superdl.experiments.run import run
from superdl.experiments.spec import load_spec

NAME = "<script>alert(1)<script>&co"


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The directory of a real run of two epochs, whose name is an attack."""
    root = tmp_path_factory.mktemp("page")
    for split, count in (("train", 12), ("val", 4)):
        for name, colour in (("blue", (0, 0, 200)), ("red", (200, 0, 0))):
            (root / split / name).mkdir(parents=True)
            for index in range(count):
                image = Image.new("RGB", (16, 16), tuple(value + index for value in colour))
                image.save(root / split / name / f"{index}.png")
    values = ("epochs=2", "loader.kind=torch", "loader.num_workers=0", "loader.batch_size=8")
    data = (f"data.train={root / 'train'}", f"data.val={root / 'val'}", f"output={root / 'runs'}")
    spec = load_spec("digits", [*values, "recipe.resize=16", "recipe.crop=16", *data])
    run(replace(spec, name=NAME), console=Console(file=io.StringIO()))
    (made,) = (root / "runs").iterdir()
    return made
