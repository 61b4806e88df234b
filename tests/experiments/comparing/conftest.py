"""A small set of pictures in class folders, and a console whose words can be read."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from PIL import Image
from rich.console import Console

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def colours(tmp_path: Path) -> Path:
    """Two classes of plain colours, 24 to train with, 8 to validate."""
    directory = tmp_path / "colours"
    for split, count in (("train", 12), ("val", 4)):
        for name, colour in (("blue", (0, 0, 200)), ("red", (200, 0, 0))):
            (directory / split / name).mkdir(parents=True)
            for index in range(count):
                image = Image.new("RGB", (16, 16), tuple(value + index for value in colour))
                image.save(directory / split / name / f"{index}.png")
    return directory


@pytest.fixture
def console() -> Console:
    """Prints to a text."""
    return Console(file=io.StringIO(), width=120)


@pytest.fixture(autouse=True)
def no_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs start their own services."""
    monkeypatch.delenv("SUPER_COORDINATOR", raising=False)
