"""The page of a run, made from the files that a run leaves: whole, failed, interrupted, killed."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from superdl.experiments.reporting.run_page import write_run_page
from superdl.super_wire.errors import ConfigError
from tests.experiments.reporting.conftest import NAME
from tests.fixtures.pages import ReadPage, read_page

if TYPE_CHECKING:
    from pathlib import Path

SECTIONS = [
    "Passes",
    "Where the time went",
    "Why the trainer waited",
    "Device and processors",
    "What it cost",
    "Loader",
    "Spec, machine and versions",
]
PLOTS = [
    "Left: loss",
    "What the steps of the first epoch and of the last",
    "What the parts of the run use over time",
]
STALLS = "Seconds that the trainer waited"
PASSES = [["1 train"], ["1 val"], ["2 train"], ["2 val"]]
COUNTS = {
    "pass",
    "cause",
    "images",
    "steps",
    "phase",
    "what",
    "value",
    "how",
    "the trainer waited because",
} | {"what helps"}


@pytest.fixture
def directory(finished: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    copy = tmp_path / "run"
    copy.mkdir()
    for entry in finished.iterdir():
        if entry.is_file():
            (copy / entry.name).write_bytes(entry.read_bytes())
    return copy


@pytest.fixture
def undrawn(monkeypatch) -> None:
    """No plots, which take longest, where only words and tables are looked at."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)


def whole_page(finished: Path) -> ReadPage:
    return read_page((finished / "report.html").read_text(encoding="utf-8"))


def page_of(directory: Path) -> ReadPage:
    return read_page(write_run_page(directory).read_text(encoding="utf-8"))


def rewrite(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def rows_of(directory: Path, name: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (directory / name).read_text().splitlines()]


def write_rows(directory: Path, name: str, rows: list[dict[str, object]]) -> None:
    (directory / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def said(page: ReadPage) -> str:
    """The words that stand before the first section."""
    return page.text.partition(page.headings[0])[0]


def first_cells(page: ReadPage, caption: str, most: int = 1) -> list[list[str]]:
    return [row[:most] for row in page.table(caption).rows]


def test_a_finished_run_has_all_sections_tables_and_plots_and_loads_nothing(finished, directory):
    page = whole_page(finished)
    assert page.title == f"Run {NAME}: finished"
    assert page.loads == []
    assert len(set(page.ids)) == len(page.ids)
    assert page.headings == SECTIONS
    figures = [caption for caption in page.figures if not caption.startswith(STALLS)]  # maybe none stalled
    for caption, words in zip(figures, PLOTS, strict=True):
        assert caption.startswith(words)
    for caption in ("Passes over the data", "Time of loading and computing"):
        assert first_cells(page, caption) == PASSES
    assert first_cells(page, "Processors in use") == [["start"], *PASSES]
    assert page.table("The bill").rows[-1][0] == "what has a price here"
    assert page.table("Settings of loader torch").rows
    for words in ("cores usable", "loader.batch_size=8"):
        assert words in page.text
    for words in (
        "Finished 2 epochs in",
        "Accuracy:",
        "Waiting for data:",
        "without training machine: no price known",
    ):
        assert words in said(page)
    for table in page.tables:
        assert all(head in COUNTS or head.endswith(")") for head in table.head), "each number has its unit"
    (directory / "report.html").unlink()
    again = write_run_page(directory).read_bytes()
    assert again == (finished / "report.html").read_bytes(), "made of the files alone"


@pytest.mark.usefixtures("undrawn")
def test_what_is_an_attack_is_text_wherever_it_stands(finished, directory):
    assert "script" not in whole_page(finished).tags
    epochs = json.loads((directory / "report.json").read_text())["epochs"]
    epochs[0]["train"]["stalls"] |= {"causes": {NAME: {"steps": 1, "wait_s": 5.0}}}
    values = {"status": "failed", "reason": NAME, "notes": [NAME], "loader_settings": {NAME: NAME}}
    rewrite(directory / "report.json", **values, epochs=epochs)
    page = page_of(directory)
    assert "script" not in page.tags
    # title, heading, reason, note, the name and the value of a setting, the spec's name; not the cause
    assert page.text.count(NAME) == 7
    assert "unknown (s)" in page.table("Stalls by cause").head


def test_a_page_takes_names_that_are_no_text_and_refuses_what_is_no_run(tmp_path):
    with pytest.raises(ConfigError, match=r"it has no report\.json"):
        write_run_page(tmp_path)
    (tmp_path / "report.json").write_text(json.dumps({"name": "a name of a file \udcff"}))
    assert "a name of a file \\udcff" in page_of(tmp_path).title
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["report.html", "report.json"]


def test_a_run_that_failed_before_its_first_step_has_a_page(directory):
    for name in ("steps.jsonl", "utilization.jsonl"):
        write_rows(directory, name, [])
    values = {"status": "failed", "reason": "SourceNotFoundError: x", "epochs": [], "utilization": None}
    rewrite(directory / "report.json", **values)
    page = page_of(directory)
    assert "Failed after 0 of 2 epochs" in said(page)
    assert "SourceNotFoundError: x" in said(page)
    assert page.headings == ["What it cost", "Loader", "Spec, machine and versions"]
    assert page.figures == []


@pytest.mark.usefixtures("undrawn")
def test_a_killed_run_has_a_page_of_the_epochs_that_it_ended(finished, directory):
    whole_stalls = first_cells(whole_page(finished), "Stalls by cause", 3)
    epochs = json.loads((directory / "report.json").read_text())["epochs"]
    rewrite(directory / "report.json", status="running", epochs=epochs[:1])
    with (directory / "steps.jsonl").open("a") as file:
        file.write('{"epoch": 1, "st')  # the kill came while it was written
    page = page_of(directory)
    assert page.title.endswith("running")
    assert "Running, or killed: 1 of 2 epochs in" in said(page)
    assert "steps.jsonl has 1 line(s) that are no rows" in page.text
    assert first_cells(page, "Passes over the data", 3) == [["1 train", "24", "3"], ["1 val", "8", "1"]]
    assert first_cells(page, "Stalls by cause", 3) == whole_stalls[:2]


@pytest.mark.usefixtures("undrawn")
def test_files_that_cannot_be_read_are_told(directory):
    (directory / "report.json").write_text("{")
    (directory / "utilization.jsonl").write_text("[]\n")
    write_rows(directory, "steps.jsonl", [*rows_of(directory, "steps.jsonl"), {"epoch": 0}])
    page = page_of(directory)
    assert "report.json cannot be read" in page.text
    for name in ("steps", "utilization"):
        assert f"{name}.jsonl has 1 line(s) that are no rows of this version" in page.text
    assert "Unknown: report.json cannot be read; the other files have what is shown." in page.text


@pytest.mark.usefixtures("undrawn")
def test_without_matplotlib_the_page_has_its_tables_and_says_what_plots_need(directory):
    page = page_of(directory)
    assert (page.headings, page.figures) == (SECTIONS, [])
    assert page.text.count("pip install 'superdl[train]', then superdl report DIRECTORY") == 1
