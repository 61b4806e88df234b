"""A run's page, from the files of a finished, a failed and a killed run."""

import json
import sys

import pytest

from superdl.experiments.reporting.run_page import write_run_page
from tests.experiments.reporting.conftest import NAME
from tests.fixtures.pages import read_page

SECTIONS = [
    "Passes",
    "Where the time went",
    "Why the trainer waited",
    "Device and processors",
    "What it cost",
    "Loader",
    "Spec, machine and versions",
]
PASSES = [["1 train"], ["1 val"], ["2 train"], ["2 val"]]


@pytest.fixture
def directory(finished, tmp_path):
    """A copy of the finished run's files."""
    copy = tmp_path / "run"
    copy.mkdir()
    for entry in finished.iterdir():
        if entry.is_file():
            (copy / entry.name).write_bytes(entry.read_bytes())
    return copy


@pytest.fixture
def undrawn(monkeypatch):
    """Draw no plots, which are slow."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)


def whole_page(finished):
    return read_page((finished / "report.html").read_text(encoding="utf-8"))


def page_of(directory):
    return read_page(write_run_page(directory).read_text(encoding="utf-8"))


def summary(page):
    return page.text.partition(page.headings[0])[0]


def first_cells(page, caption, count=1):
    return [row[:count] for row in page.table(caption).rows]


def rewrite(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_page_is_complete_and_self_contained(finished, directory):
    page = whole_page(finished)
    assert page.title == f"Run {NAME}: finished"
    assert page.loads == []
    assert len(set(page.ids)) == len(page.ids)
    assert page.headings == SECTIONS
    assert [caption.partition(",")[0] for caption in page.figures] == ["Left: loss"]
    for caption in ("Passes over the data", "Time of loading and computing"):
        assert first_cells(page, caption) == PASSES
    assert first_cells(page, "Processors in use") == [["start"], *PASSES]
    assert page.table("The bill").rows[-1][0] == "total of known prices"
    assert page.table("Settings of loader torch").rows
    for words in ("cores usable", "batch_size: 8"):
        assert words in page.text
    for words in (
        "Finished 2 epochs in",
        "Accuracy:",
        "Waiting for data:",
        "without training machine: no price known",
    ):
        assert words in summary(page)
    (directory / "report.html").unlink()
    again = write_run_page(directory).read_bytes()
    assert again == (finished / "report.html").read_bytes(), "depends only on the files"


@pytest.mark.usefixtures("undrawn")
def test_external_text_is_escaped_everywhere(finished, directory):
    assert "script" not in whole_page(finished).tags
    epochs = json.loads((directory / "report.json").read_text())["epochs"]
    epochs[0]["train"]["stalls"] |= {"causes": {NAME: {"steps": 1, "wait_s": 5.0}}}
    values = {"status": "failed", "reason": NAME, "notes": [NAME], "loader_settings": {NAME: NAME}}
    rewrite(directory / "report.json", **values, epochs=epochs)
    page = page_of(directory)
    assert "script" not in page.tags
    # Title, heading, reason, note, name and value of a setting, and the spec's name.
    assert page.text.count(NAME) == 7
    assert "unknown (s)" in page.table("Stalls by cause").head


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("executor", "source", "fitting"),
    [
        ("local", "file:///images", set()),
        ("lambda", "s3://bucket/train", {"a bucket in the same region", "provisioned concurrency"}),
        (
            "as the coordinator at host:1 decides",
            "/images",
            {"a bucket in the same region", "provisioned concurrency", "superdl warm"},
        ),
    ],
)
def test_what_helps_fits_the_executor_and_the_source(directory, executor, source, fitting):
    report = json.loads((directory / "report.json").read_text())
    stalls = {"starting": {"steps": 1, "wait_s": 5.0}, "storage": {"steps": 1, "wait_s": 5.0}}
    report["epochs"][0]["train"]["stalls"]["causes"] = stalls
    report["executor"], report["spec"]["data"]["train"] = executor, source
    (directory / "report.json").write_text(json.dumps(report))
    advice = " ".join(row[2] for row in page_of(directory).table("What the causes mean").rows)
    assert "a faster disk" in advice
    setups = ("a bucket in the same region", "provisioned concurrency", "superdl warm")
    assert {words for words in setups if words in advice} == fitting


def test_a_killed_run_has_a_page_of_its_finished_epochs(finished, directory):
    whole_stalls = first_cells(whole_page(finished), "Stalls by cause", 3)
    epochs = json.loads((directory / "report.json").read_text())["epochs"]
    rewrite(directory / "report.json", status="running", epochs=epochs[:1])
    page = page_of(directory)
    assert page.title.endswith("running")
    assert "Running, or killed: 1 of 2 epochs in" in summary(page)
    assert first_cells(page, "Passes over the data", 3) == [["1 train", "24", "3"], ["1 val", "8", "1"]]
    assert first_cells(page, "Stalls by cause", 3) == whole_stalls[:2]
