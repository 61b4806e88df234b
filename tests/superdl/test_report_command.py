"""``superdl report``: a page from what there is, and clear words where there is nothing."""

from __future__ import annotations

import json
import sys

import pytest

from superdl.main import main
from tests.fixtures.pages import read_page


@pytest.fixture
def killed(tmp_path):
    """What a run leaves that was killed before its first step."""
    (tmp_path / "report.json").write_text(json.dumps({"name": "digits", "status": "running", "spec": {}}))
    return tmp_path


def test_the_page_is_made_and_named(killed, capsys):
    assert main(["report", str(killed)]) == 0
    assert capsys.readouterr().out == f"{killed / 'report.html'}\n"
    page = read_page((killed / "report.html").read_text())
    assert page.title == "Run digits: running"
    assert "Running, or killed: 0 epochs so far." in page.text
    assert main(["report", str(killed), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"page": str(killed / "report.html"), "name": "digits", "status": "running"}


def test_without_matplotlib_that_is_told(killed, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["report", str(killed)]) == 0
    assert "without plots: plots need the package matplotlib" in capsys.readouterr().err


def test_a_directory_of_no_run_is_refused(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "is no directory of a run" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_directory_of_runs_points_to_the_book_that_shows_them(killed, capsys):
    runs = killed.parent
    assert main(["report", str(runs)]) == 2
    assert f"superdl report --book {runs}" in capsys.readouterr().err
    assert main(["report", "--book", str(runs)]) == 0


def test_a_place_that_cannot_be_written_is_named(killed, capsys):
    (killed / "report.html").mkdir()
    assert main(["report", str(killed)]) == 2
    assert f"cannot write {killed / 'report.html'}" in capsys.readouterr().err
