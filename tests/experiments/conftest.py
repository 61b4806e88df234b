"""A small set of pictures in class folders, which runs of several tests train on."""

from __future__ import annotations

import pytest
from PIL import Image


@pytest.fixture
def colours(tmp_path):
    """Two classes of plain colours, 24 to train with, 8 to validate."""
    directory = tmp_path / "colours"
    for split, count in (("train", 12), ("val", 4)):
        for name, colour in (("blue", (0, 0, 200)), ("red", (200, 0, 0))):
            (directory / split / name).mkdir(parents=True)
            for index in range(count):
                image = Image.new("RGB", (16, 16), tuple(value + index for value in colour))
                image.save(directory / split / name / f"{index}.png")
    return directory
