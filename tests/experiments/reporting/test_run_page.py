"""The page of a run, made from the files that a run leaves: whole, failed, interrupted, killed."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import pytest
from PIL import Image
from rich.console import Console

from experiments.reporting.run_page import write_page
from experiments.run import run
from experiments.spec import load_spec
from super_wire.errors import ConfigError
from tests.fixtures.pages import ReadPage, read_page

if TYPE_CHECKING:
    from pathlib import Path

NAME = "<script>alert(1)</script>&co"


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
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
    spec = load_spec("digits", ["name=colours", *values, "recipe.resize=16", "recipe.crop=16", *data])
    made = run(spec, console=Console(file=io.StringIO())).directory
    return root / "runs" / made.rpartition("/")[2]


@pytest.fixture
def directory(finished: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    copy = tmp_path / "run"
    copy.mkdir()
    for entry in finished.iterdir():
        if entry.is_file():
            (copy / entry.name).write_bytes(entry.read_bytes())
    return copy


def page_of(directory: Path) -> ReadPage:
    return read_page(write_page(directory).read_text(encoding="utf-8"))


def change(directory: Path, **values: object) -> None:
    path = directory / "report.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_finished_run_has_all_sections_tables_and_plots(finished):
    page = read_page((finished / "report.html").read_text(encoding="utf-8"))
    assert page.title == "Run colours: finished"
    assert page.loads == []
    assert len(set(page.ids)) == len(page.ids)
    assert [row[0] for row in page.table("Passes over the data").rows] == [
        "1 train",
        "1 val",
        "2 train",
        "2 val",
    ]


def test_the_page_is_made_from_the_files_alone_and_twice_the_same(finished, directory):
    (directory / "report.html").unlink()
    assert write_page(directory).read_bytes() == (finished / "report.html").read_bytes()


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"neither manifest\.json nor report\.json"):
        write_page(tmp_path)
